//! Qwen3's own tokenizer: ids that drift when their text is encoded again, and a run on its vocabulary that does not.

mod recorded;

use lockstep::{
    dispatch::{Driver, History, Settings, Station},
    ledger::Ledger,
};
use lockstep_core::{
    BatchPlan, Rollout, TokenId, dispatch::Rules, plan::PromptGroup, reward::Outcome, rollout::Request,
    version::WeightVersion,
};
use lockstep_engine::{Config, Qwen3, Qwen3Sampler, SamplerPort, Tokenizer, Weights};
use lockstep_tests::{
    binary::{lockstep, run},
    files, proto,
};
use recorded::{Plan, recorded};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

fn tokenizer_json() -> PathBuf {
    let path = proto::root().join("target/test-data/qwen3-tokenizer.json");
    assert!(path.exists(), "the tokenizer of Qwen3 is missing: run tests/setup.sh");
    path
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&tokenizer_json()).unwrap_or_else(|error| panic!("{error}"))
}

/// Ids a sampler may draw, one way or another; their text; and the ids the text has.
type Drift<'a> = (&'a [&'a [u32]], &'a str, &'a [u32]);

#[test]
fn sampled_ids_drift_when_their_text_is_encoded() {
    let tokenizer = tokenizer();
    let rows: [Drift<'_>; 11] = [
        (&[&[53122, 316], &[10990, 37401]], " Pantom", &[393, 30002]),
        (&[&[39, 83722]], "HAVING", &[72239, 1718]),
        (&[&[71, 4791], &[49122, 385], &[56095, 78]], "hello", &[14990]),
        (&[&[220, 97597], &[526, 27135], &[946, 41140], &[2590, 1663]], " international", &[6489]),
        (&[&[198, 198]], "\n\n", &[271]),
        (&[&[198, 271], &[271, 198]], "\n\n\n", &[1406]),
        (&[&[13, 271], &[624, 198]], ".\n\n", &[382]),
        (&[&[0, 271], &[4894, 198]], "!\n\n", &[2219]),
        (&[&[27, 14]], "</", &[522]),
        (&[&[220, 1782], &[259, 383], &[270, 68]], " the", &[279]),
        (&[&[94], &[95]], "\u{fffd}", &[5691]),
    ];
    for (sampled, text, encoded) in rows {
        assert_eq!(tokenizer.encode(text).unwrap(), encoded, "{text:?}");
        for ids in sampled {
            assert_eq!(tokenizer.decode(ids).as_deref(), Some(text), "{ids:?}");
            assert_ne!(*ids, encoded);
        }
    }
}

/// Parts encoded one by one, and together.
#[test]
fn a_seam_merges_where_the_parts_would_not() {
    let tokenizer = tokenizer();
    let seam = |left: &str, right: &str| {
        let encode = |text: &str| tokenizer.encode(text).unwrap();
        ([encode(left), encode(right)].concat(), encode(&format!("{left}{right}")))
    };
    let (apart, joint) = seam("assistant\n", "\n\nHi");
    assert_eq!((apart, joint), (vec![77091, 198, 271, 13048], vec![77091, 1406, 13048]));
    let (apart, joint) = seam("<think>\n", "\nOkay");
    assert_eq!((apart, joint), (vec![151667, 198, 198, 32313], vec![151667, 271, 32313]));
    let (apart, joint) = seam("</tool_call>", "\n");
    assert_eq!((apart, joint), (vec![151658, 198], vec![151658, 198]), "an added token never merges");
    assert_eq!(tokenizer.encode(r#"{"folder": "tmp"}"#).unwrap(), [4913, 17668, 788, 330, 5173, 9207]);
    assert_eq!(tokenizer.encode(r#"{"folder":"tmp"}"#).unwrap(), [4913, 17668, 3252, 5173, 9207]);
}

#[test]
fn some_ids_do_not_drift() {
    let tokenizer = tokenizer();
    let rows: [(&[u32], &str); 3] = [
        (&[151644, 872, 198, 4340, 525, 498, 30, 151645, 198], "<|im_start|>user\nHow are you?<|im_end|>\n"),
        (&[472, 83722], " HAVING"),
        (&[3603, 23066], " indivisible"),
    ];
    for (ids, text) in rows {
        assert_eq!(tokenizer.decode(ids).as_deref(), Some(text));
        assert_eq!(tokenizer.encode(text).unwrap(), ids);
    }
    assert_eq!(in_two(&tokenizer, " HAVING"), [[472, 83722]]);
    assert_eq!(in_two(&tokenizer, " indivisible"), [[3603, 23066]]);
    assert!(in_two(&tokenizer, " the").contains(&[220, 1782]), "and what does drift has other ways");
}

/// Every way to write a text as two tokens that stand for their own text.
fn in_two(tokenizer: &Tokenizer, text: &str) -> Vec<[u32; 2]> {
    let whole = |part: &str| match tokenizer.encode(part).unwrap_or_default()[..] {
        [id] => Some(id),
        _ => None,
    };
    (1..text.len()).filter_map(|at| Some([whole(&text[..at])?, whole(&text[at..])?])).collect()
}

const PROMPTS: &str = r#"{"prompt": "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n", "answer": "Fine."}
{"prompt": "<|im_start|>user\n1 + 1 = ?<|im_end|>\n<|im_start|>assistant\n", "answer": "2"}
{"prompt": " Pantom", "answer": "ime"}
"#;

/// A random Qwen3 with the vocabulary of the real one, peaked enough to have small supports, with its real tokenizer.
fn real_vocabulary(directory: &Path) -> PathBuf {
    let config = Config {
        vocab: 151_936,
        hidden: 64,
        inter: 128,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        max_positions: 4096,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        tied: false,
        eos: vec![151_645],
    };
    let model = directory.join("model");
    fs::create_dir(&model).unwrap_or_else(|error| panic!("{}: {error}", model.display()));
    let weights = Weights::random(&config, 1234, 0.8).unwrap_or_else(|error| panic!("{error}"));
    let saved = Qwen3::new(config, weights).and_then(|qwen3| qwen3.save(&model));
    saved.unwrap_or_else(|error| panic!("{error}"));
    files::write(model.join("tokenizer.json"), fs::read(tokenizer_json()).expect("it is there"));
    files::write(model.join("generation_config.json"), r#"{"eos_token_id": [151645, 151643]}"#);
    model
}

#[tokio::test]
async fn a_run_keeps_the_ids_that_were_sampled() {
    let directory = tempfile::tempdir().unwrap();
    real_vocabulary(directory.path());
    files::write(directory.path().join("prompts.jsonl"), PROMPTS);
    let tokenizer = tokenizer();
    for top_p in ["0.95", "1.0"] {
        let plans = train(directory.path(), top_p);
        assert_eq!(plans.len(), 2);
        let stop = [TokenId(151_645), TokenId(151_643)];
        assert!(plans.iter().flat_map(|plan| &plan.requests).all(|request| request.params.limits().stop == stop));
        prompts_are_the_files(&plans, &tokenizer);
        assert_eq!(drawn_again(directory.path(), &plans[0]).await, plans[0].rollouts, "top_p {top_p}");
        let drifts = |plan: &Plan| plan.rollouts.iter().any(|rollout| would_drift(rollout, &tokenizer));
        assert!(plans.iter().any(drifts), "every answer is as its text would be encoded");
    }
}

fn train(directory: &Path, top_p: &str) -> Vec<Plan> {
    let mut demo = lockstep(directory);
    demo.args(["demo", "--model", "model", "--prompts", "prompts.jsonl", "--steps", "2", "--out", top_p]);
    for setting in ["batch.prompts=2", "batch.answers=2", "sampling.max_new_tokens=6"] {
        demo.args(["--set", setting]);
    }
    demo.arg("--set").arg(format!("sampling.top_p={top_p}"));
    let finished = run(demo);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let (metrics, plans) = recorded(&directory.join(top_p));
    assert_eq!(metrics.len(), 2);
    plans
}

fn prompts_are_the_files(plans: &[Plan], tokenizer: &Tokenizer) {
    let ids = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        tokenizer.encode(line["prompt"].as_str().unwrap_or_default()).unwrap_or_default()
    };
    let written: Vec<Vec<u32>> = PROMPTS.lines().map(ids).collect();
    for request in plans.iter().flat_map(|plan| &plan.requests) {
        let prompt: Vec<u32> = request.prompt.iter().map(|id| id.0).collect();
        assert!(written.contains(&prompt), "{prompt:?}");
    }
}

/// The plan's answers, drawn by the engine itself: the same ids from the same supports.
async fn drawn_again(directory: &Path, plan: &Plan) -> Vec<Rollout> {
    let model = Qwen3::load(&directory.join("model")).unwrap_or_else(|error| panic!("{error}"));
    let sampler = Qwen3Sampler::new(&model, WeightVersion { epoch: 0, step: 0 });
    let sampler = SamplerPort::new(sampler.unwrap_or_else(|error| panic!("{error}"))).expect("there is a thread");
    let ledger = tempfile::tempdir().expect("there is room for a temporary directory");
    let (ledger, _) = Ledger::open(ledger.path()).unwrap_or_else(|error| panic!("{error}"));
    let station = Station { name: "engine".into(), sampler: Arc::new(sampler), slots: u32::MAX };
    let settings = Settings { rules: Rules::default(), lease: Duration::from_secs(600), first: 0 };
    let begun = (ledger, History::default(), WeightVersion { epoch: 0, step: 0 });
    let driver = Driver::start(settings, vec![station], Arc::new(|_| Outcome::Reward(0.0)), begun);
    let mut driver = driver.unwrap_or_else(|error| panic!("{error}"));
    let group = |requests: &[Request]| PromptGroup {
        prompt: requests[0].prompt.clone(),
        answers: requests.iter().map(|request| request.params.clone()).collect(),
    };
    let groups = plan.requests.chunk_by(|a, b| a.group == b.group).map(group).collect();
    let again = BatchPlan::open(0, groups).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.requests(), plan.requests);
    driver.draw().and_then(|()| driver.open(again)).unwrap_or_else(|error| panic!("{error}"));
    let batch = driver.next().await;
    batch.unwrap_or_else(|error| panic!("{error}")).batch().rollouts().to_vec()
}

/// Whether the text of an answer, encoded, is other ids; or whether it has no text at all.
fn would_drift(rollout: &Rollout, tokenizer: &Tokenizer) -> bool {
    let ids: Vec<u32> = rollout.sampled().map(|id| id.0).collect();
    let encoded = tokenizer.decode(&ids).and_then(|text| tokenizer.encode(&text).ok());
    encoded != Some(ids)
}
