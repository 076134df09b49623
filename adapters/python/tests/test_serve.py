"""The client against the real `lockstep serve`, which draws from a scripted engine."""

import json
import os
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path

import engine
import pytest

import lockstep
from lockstep import Consumed, WeightVersion, errors
from lockstep.calls import REPORTED
from lockstep.rules import EssReport

BINARY = Path(os.environ.get("LOCKSTEP_BIN", Path(__file__).parents[3] / "target/debug/lockstep"))
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"no gateway at {BINARY}: cargo build -p lockstep")

PLANS, PROMPTS, ANSWERS = 3, 2, 2


class Gateway:
    """One that can be killed, and started again on the same ledger and port."""

    def __init__(self, directory):
        self.directory, self.address = directory, "127.0.0.1:0"
        self.server, self.engine = engine.start()
        prompts = directory / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"token_ids": [10 * at, at]}) + "\n" for at in range(1, 6)))
        self.arguments = ["--prompts", prompts, "--plan-prompts", PROMPTS, "--answers", ANSWERS, "--plans", PLANS]
        self.process = None

    def start(self, *more):
        command = [BINARY, "serve", "--engine", self.engine, "--listen", self.address, "--out", self.directory / "ledger"]
        command += ["--stop-id", engine.STOP, "--vocabulary", engine.VOCABULARY, *self.arguments, *more]
        self.process = subprocess.Popen(map(str, command), stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def audit(self):
        audit = subprocess.run([BINARY, "audit", self.directory / "ledger"], capture_output=True, text=True)
        return audit.returncode, audit.stdout + audit.stderr


@pytest.fixture
def gateway(tmp_path):
    gateway = Gateway(tmp_path)
    yield gateway
    if gateway.process is not None:
        gateway.kill()
    gateway.server.shutdown()


def judge(address):
    """Rewards every answer by its length, plan by plan."""
    with lockstep.connect(address) as judge:
        for plan in range(PLANS):
            batch = judge.seal(plan)
            try:
                judge.reward({rollout: float(length) for rollout, length in zip(batch.ids, batch.lengths)})
            except errors.Refused as refused:
                # The gateway was killed after it took the rewards and before it said so.
                assert f"plan {plan} was consumed already" in str(refused)


def test_batches_are_pulled_across_a_kill_and_the_audit_is_green(gateway):
    gateway.start()
    judging = threading.Thread(target=judge, args=(gateway.address,))
    judging.start()
    seen = []
    with lockstep.connect(gateway.address) as client:
        assert client.describe().pull
        for batch in client.batches():
            assert batch.rewards.tolist() == batch.lengths.tolist()
            assert batch.groups.tolist() == [0, 0, 1, 1] and batch.prompts[0].tolist() == batch.prompts[1].tolist()
            seen.append((batch.plan, batch.ids))
            before, after = WeightVersion(0, batch.plan), WeightVersion(0, batch.plan + 1)
            ess = {WeightVersion(0, 0): EssReport(0.9, 0.8, 0.7, 24, len(batch), len(batch.tokens))}
            metrics = {name: 0.25 for name in REPORTED}
            decision = client.report_step(before, after, metrics, ess, gradient_norm=1.0, tokens=len(batch.tokens))
            assert (decision.resynchronise, decision.ess) == (False, 0.7)
            assert client.report_step(before, after, metrics, {}, gradient_norm=1.0, tokens=1).ess is None
            if batch.plan == 1:
                gateway.kill()
                gateway.start()
        with pytest.raises(errors.Refused, match=f"plan {PLANS} is none of the {PLANS} that there will be"):
            client.seal(PLANS)
    judging.join()
    assert seen == [(plan, tuple(lockstep.RolloutId(plan, at) for at in range(4))) for plan in range(PLANS)]
    code, told = gateway.audit()
    assert code == 0, told
    assert f"{PLANS} plans opened with 12 rollouts; {PLANS} batches trained on 12 rollouts" in told


def test_a_part_that_was_not_reported_is_given_to_the_rank_that_comes(gateway):
    gateway.start("--lease", 1)
    judging = threading.Thread(target=judge, args=(gateway.address,))
    judging.start()
    lost = lockstep.connect(gateway.address, consumer="a", rank=0, ranks=2)
    part = next(lost.batches())
    assert part.groups.tolist() == [0, 0]
    lost.close()
    with lockstep.connect(gateway.address, consumer="b", rank=1, ranks=2) as other:
        batches = other.batches()
        assert next(batches).groups.tolist() == [1, 1]
        heir = lockstep.connect(gateway.address, consumer="c", rank=0, ranks=2)
        while True:
            try:
                again = next(heir.batches())
                break
            except errors.Refused as refused:
                assert "is held by a until its lease ends" in str(refused)
        assert again.ids == part.ids and again.tokens.tolist() == part.tokens.tolist()
        heir.close()
    judging.join()


def test_a_trainer_that_leaves_answers_out_is_refused_and_the_audit_is_red(gateway):
    gateway.arguments = []
    gateway.start()
    with lockstep.connect(gateway.address) as client:
        with pytest.raises(errors.Refused, match="no prompts of its own"):
            next(client.batches())
        plan = client.open_plan(1, 2)
        ask(gateway, plan)
        batch = client.seal(plan)
        with pytest.raises(errors.PlanMismatch, match="1 rollouts were trained on, 2 were given; p0.r1 not trained on"):
            client.report_consumed(plan, batch.consumed()[:1])
        with pytest.raises(errors.PlanMismatch, match="but the mask kept 0"):
            client.report_consumed(plan, [Consumed(row.rollout, row.tokens, 0) for row in batch.consumed()])
    code, told = gateway.audit()
    assert code == 1 and "RED" in told and "lacks 1 of 2 rollouts, the first is p0.r1" in told, told


def test_a_trainer_that_trains_on_what_it_opened_is_green(gateway):
    gateway.arguments = []
    gateway.start()
    with lockstep.connect(gateway.address) as client:
        plan = client.open_plan(1, 2, plan=0)
        ask(gateway, plan)
        gateway.kill()
        gateway.start()
        assert client.open_plan(1, 2, plan=0) == plan
        client.reward_failed(plan.rollouts[0], "the judge timed out")
        client.reward({plan.rollouts[1]: 1.0})
        batch = client.seal(plan)
        assert batch.rewards.tolist() == [0.0, 1.0]
        for _ in range(2):
            client.report_consumed(plan, reversed(batch.consumed()))
    code, told = gateway.audit()
    assert code == 0, told
    assert "1 plans opened with 2 rollouts; 1 batches trained on 2 rollouts" in told


def ask(gateway, plan):
    """Samples a plan over HTTP."""
    body = {"prompt": [30, 3], "n": len(plan.rollouts), "max_tokens": 6, "return_token_ids": True}
    headers = {"X-Rollout-ID": ",".join(map(str, plan.rollouts)), "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{gateway.address}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert len(json.load(answer)["choices"]) == len(plan.rollouts)
