//! Honest pairs pass, faulty ones are flagged, and the README tells the truth.

use lockstep_conformance::{
    Course, Look, Progress, Suite, Target, Verdict, Way,
    cases::{self, Cover, Tier},
    draw, pair, readme,
};
use std::{path::Path, sync::Arc};

const HONEST: u64 = 24;
const FAULTY: u64 = 8;

async fn pass(build: fn(u64) -> Target, seeds: u64) {
    for seed in 0..seeds {
        let report = Suite::all().run(&build(seed), &mut |_| {}).await;
        let passed = report.rows.iter().filter(|row| row.verdict.is_pass()).count();
        assert_eq!((passed, report.exit_code()), (report.rows.len(), 0), "seed {seed}:\n{}", report.table());
    }
}

async fn flagged(build: fn(u64) -> Target, seeds: u64) {
    for check in Suite::all().checks() {
        for fault in check.faults() {
            for seed in 0..seeds {
                let verdict = check.run(&(fault.break_target)(build(seed))).await;
                assert!(verdict.is_fail(), "{} under {}, seed {seed}: {verdict:?}", check.id, fault.id);
            }
        }
    }
}

#[tokio::test]
async fn honest_pairs_pass_every_check() {
    pass(pair::target, HONEST).await;
}

#[tokio::test]
async fn honest_pairs_with_a_numeric_term_pass_every_check() {
    pass(pair::rounded, HONEST / 2).await;
}

#[tokio::test]
async fn every_fault_is_flagged_by_its_own_check() {
    flagged(pair::target, FAULTY).await;
}

#[tokio::test]
async fn every_fault_is_flagged_through_a_numeric_term() {
    flagged(pair::rounded, FAULTY / 4).await;
}

/// What a training of the built-in pair was seen to give, or another closeness of the way as wrapped.
struct Seen(f64, f64);

#[async_trait::async_trait]
impl Course for Seen {
    async fn looks(&self, way: Way) -> lockstep_core::ports::PortResult<Vec<Look>> {
        let floors = match way {
            Way::Wrapped => self.0,
            Way::Plain => 23.8,
            Way::Still => self.1,
        };
        Ok([8, 16, 24].map(|step| Look { step, floors }).to_vec())
    }
}

#[tokio::test]
async fn a_training_far_from_on_policy_is_red_and_one_without_a_control_is_undecided() {
    let suite = Suite::deep();
    let check = suite.get("end.divergence").unwrap();
    let of = |wrapped, still| Target { course: Some(Arc::new(Seen(wrapped, still))), ..Target::default() };
    assert!(check.run(&of(1.3, 11.0)).await.is_pass());
    assert!(check.run(&of(3.1, 11.0)).await.is_fail());
    assert!(check.run(&(check.fault.break_target)(of(1.3, 11.0))).await.is_fail());
    assert_eq!(check.run(&of(1.3, 4.9)).await.word(), "could not run");
    assert_eq!(check.run(&Target::default()).await.word(), "not applicable");
}

/// Answers that a pair drew, without the pair.
async fn recorded(pair: Target) -> Target {
    let shape = draw::Shape { question: 0x4ec, answers: 8, max_new_tokens: 2 * pair.ask.max_new_tokens };
    let batch = draw::sample(&pair, shape).await.unwrap_or_else(|error| panic!("{error}"));
    Target { recorded: Some(Arc::new(batch)), ask: pair.ask, ..Target::default() }
}

#[tokio::test]
async fn what_was_recorded_is_judged_and_its_faults_are_flagged() {
    let (suite, judged) =
        (Suite::all(), ["distribution.drawn", "distribution.support", "tokens.ends", "tokens.vocabulary"]);
    for seed in 0..HONEST {
        let honest = recorded(pair::target(seed)).await;
        for id in judged {
            let verdict = suite.get(id).unwrap().run(&honest).await;
            assert!(verdict.is_pass(), "{id}, seed {seed}: {verdict:?}");
        }
        assert_eq!(suite.get("version.evidence").unwrap().run(&honest).await.word(), "could not run");
    }
    let faults = [
        ("distribution.drawn", "wide-report"),
        ("distribution.drawn", "drawn-sharper"),
        ("distribution.support", "tail-claimed"),
        ("tokens.ends", "runs-on"),
        ("tokens.ends", "limit-exceeded"),
        ("tokens.vocabulary", "padded-id"),
        ("version.evidence", "undeclared"),
    ];
    for (id, fault) in faults {
        let check = suite.get(id).unwrap();
        let fault = check.faults().find(|of| of.id == fault).unwrap();
        for seed in 0..FAULTY {
            let verdict = check.run(&recorded((fault.break_target)(pair::target(seed))).await).await;
            assert!(verdict.is_fail(), "{id} under {}, seed {seed}: {verdict:?}", fault.id);
        }
    }
}

#[tokio::test]
async fn without_ports_nothing_is_applicable_and_the_reason_is_named() {
    let report = Suite::all().run(&Target::default(), &mut |_| {}).await;
    assert_eq!(report.exit_code(), 0);
    for row in &report.rows {
        let Verdict::NotApplicable(reason) = &row.verdict else { panic!("{}: {:?}", row.id, row.verdict) };
        assert!(reason.starts_with("the target has no "), "{reason}");
    }
}

#[tokio::test]
async fn a_port_error_is_could_not_run_with_its_text() {
    let target = pair::target(1);
    let control = target.control.clone().unwrap();
    control.pause().await.unwrap();
    let verdict = Suite::all().get("numeric.size").unwrap().run(&target).await;
    assert_eq!(verdict, Verdict::CouldNotRun("port sampler: the sampler is paused".into()));
}

#[tokio::test]
async fn progress_names_every_check_before_and_after() {
    let mut seen = Vec::new();
    let suite = Suite::only(&["batch.membership", "numeric.size"]).unwrap();
    suite
        .run(&pair::target(1), &mut |progress| match progress {
            Progress::Started { id, index, of } => seen.push(format!("{id} {index}/{of}")),
            Progress::Finished(row) => seen.push(row.verdict.word().to_owned()),
        })
        .await;
    assert_eq!(seen, ["batch.membership 0/2", "pass", "numeric.size 1/2", "pass"]);
    assert_eq!(Suite::only(&["lag.none"]).unwrap_err(), "lag.none");
}

#[test]
fn every_check_states_itself() {
    let mut ids = Vec::new();
    for check in Suite::deep().checks() {
        assert!(!check.cases.is_empty() && !check.demand.ends_with('.'), "{}", check.id);
        for case in check.cases {
            assert!(case.contains('/') && case.contains('#'), "{case}");
        }
        assert!(check.explain.contains("Fix"), "{}", check.id);
        ids.extend(check.faults().map(|fault| fault.id));
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "two faults share a name");
}

/// Reports by tier, as they were handed to the authors of this suite: each of them must have a row.
const REPORTS: [(Tier, &[&str]); 3] = [
    (
        Tier::Numbers,
        &[
            "trl#6789",
            "trl#7269",
            "trl#4159",
            "tinker-cloud#26",
            "sglang#36630",
            "esm#360",
            "RL#4154",
            "RL#3497",
            "async_grpo",
            "prime-rl#886",
            "ms-swift#8442",
            "slime#2319",
            "vime#70",
            "TensorRT-LLM#18190",
            "cookbook#483",
            "maxtext#5231",
            "slime#179",
            "AReaL#201",
            "miles#1829",
            "trl#5231",
            "policy-mismatch.md",
            "verl#4252",
        ],
    ),
    (
        Tier::Template,
        &[
            "rllm#272",
            "trl#5224",
            "prime-rl#1334",
            "verl#6501",
            "labs-molt#20",
            "slime#2213",
            "trl#6361",
            "verl#6854",
            "smg#1836",
            "dynamo#8630",
            "Gym#1787",
            "agent-lightning#44",
            "verl#2165",
        ],
    ),
    (
        Tier::Asynchrony,
        &[
            "slime#2092",
            "AReaL#1569",
            "labs-molt#124",
            "tinker-cookbook#822",
            "RL#3665",
            "prime-rl#2960",
            "verl-recipe#125",
            "AReaL#450",
            "sglang#11673",
            "vllm#54443",
            "tinker-cloud#32",
            "marin#8955",
        ],
    ),
];

#[test]
fn every_report_is_covered_by_something_that_is_there() {
    let mut rows = 0;
    for (tier, reports) in REPORTS {
        rows += reports.len();
        for report in reports {
            let row = cases::ALL.iter().find(|case| case.tier == tier && case.report.ends_with(report));
            let row = row.unwrap_or_else(|| panic!("nothing covers {report}"));
            assert!(!row.covers.is_empty(), "nothing covers {report}");
        }
    }
    assert_eq!(cases::ALL.len(), rows, "a row that no report asks for");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (case, cover) in cases::ALL.iter().flat_map(|case| case.covers.iter().map(move |cover| (case, cover))) {
        match cover {
            Cover::Check(id) => assert!(Suite::all().get(id).is_some(), "{}: there is no check {id}", case.report),
            Cover::Test(file, test) => {
                let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
                assert!(text.contains(&format!("fn {test}(")), "{}: {file} has no test {test}", case.report);
            }
        }
    }
}

#[test]
fn the_readme_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let expected = readme::updated(&found).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(found, expected, "UPDATE_EXPECT=1 rewrites the table");
    }
}
