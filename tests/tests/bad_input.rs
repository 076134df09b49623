//! Input that cannot be used: one line that says what is wrong with it, the right exit code, and nothing half-written.

mod recorded;

use lockstep_engine::{Config, Qwen3, Weights};
use lockstep_tests::{
    binary::{Finished, lockstep, lockstep_after, run, small_model},
    files,
};
use recorded::recorded;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const GOOD_LINE: &str = r#"{"prompt": "hgfedcba>", "answer": "abcdefgh"}"#;

/// A directory with a good model and good prompts, to be damaged.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        files::copy(&small_model(), &directory.path().join("model"));
        files::write(directory.path().join("prompts.jsonl"), GOOD_LINE);
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file by what `change` makes of it.
    fn change(&self, name: &str, change: impl FnOnce(String) -> String) {
        let text = fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        files::write(self.path(name), change(text));
    }

    /// A demo of the model and the prompts here.
    fn train(&self) -> Finished {
        self.demo(&["--model", "model", "--prompts", "prompts.jsonl", "--set", "batch.prompts=1"])
    }

    fn demo(&self, arguments: &[&str]) -> Finished {
        let mut command = lockstep(self.0.path());
        command.args(["demo", "--set", "steps=1", "--out", "out"]).args(arguments);
        run(command)
    }

    /// Asserts that the run refused with one line, and that it left nothing, or nothing half-written.
    #[track_caller]
    fn refused(&self, finished: &Finished, because: &str) {
        assert_eq!(finished.stderr, format!("{}\n", one_error(finished, 2)));
        assert!(finished.stderr.contains(because), "{because:?} is not in {:?}", finished.stderr);
        whole(&self.path("out"));
    }

    /// As [`Place::refused`], before anything was written.
    #[track_caller]
    fn refused_at_once(&self, finished: &Finished, because: &str) {
        self.refused(finished, because);
        assert!(!self.path("out").exists(), "out was made for {because:?}");
    }
}

/// The only error of a run, which is its last line.
#[track_caller]
fn one_error(finished: &Finished, code: i32) -> &str {
    let Finished { stderr, .. } = finished;
    assert_eq!(finished.code, Some(code), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{stderr}");
    let first = stderr.lines().find(|line| line.starts_with("error:"));
    first.unwrap_or_default()
}

/// No half-written file, no torn line of metrics, a ledger that reads.
fn whole(out: &Path) {
    if out.exists() {
        assert_eq!(files::half_written(out), [] as [&Path; 0]);
        recorded(out);
    }
}

#[test]
fn good_input_is_used() {
    let place = Place::new();
    let finished = place.train();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(recorded(&place.path("out")).0.len(), 1);
}

#[test]
fn a_model_that_is_not_there() {
    let place = Place::new();
    let finished = place.demo(&["--model", "nowhere", "--prompts", "prompts.jsonl"]);
    place.refused_at_once(&finished, "nowhere/config.json: No such file or directory");
    fs::remove_file(place.path("model/model.safetensors")).unwrap();
    place.refused(&place.train(), "model/model.safetensors: No such file or directory");
}

#[test]
fn a_card_in_a_build_without_cuda() {
    let place = Place::new();
    place.refused_at_once(&place.demo(&["--device", "cuda"]), "make build-cuda");
    let finished = place.demo(&["--device", "gpu"]);
    assert_eq!(finished.code, Some(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("there are cpu, cuda and cuda:N"), "{}", finished.stderr);
}

#[test]
fn truncated_weights() {
    let place = Place::new();
    let weights = place.path("model/model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for length in [0, 5, 1000, bytes.len() / 2, bytes.len() - 1] {
        let _ = fs::remove_dir_all(place.path("out"));
        files::write(weights.clone(), &bytes[..length]);
        place.refused(&place.train(), &format!("model.safetensors: {length} bytes, "));
    }
}

#[test]
fn another_model() {
    let place = Place::new();
    place.change("model/config.json", |json| json.replace("qwen3", "llama").replace("Qwen3For", "LlamaFor"));
    place.refused_at_once(&place.train(), r#"model_type is "llama""#);
}

#[test]
fn a_model_without_one_of_its_fields() {
    for field in ["vocab_size", "head_dim", "rms_norm_eps", "tie_word_embeddings", "hidden_act"] {
        let place = Place::new();
        place.change("model/config.json", |json| {
            let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
            json.as_object_mut().unwrap().remove(field).unwrap();
            json.to_string()
        });
        place.refused_at_once(&place.train(), field);
    }
}

#[test]
fn a_model_of_another_shape_than_its_weights() {
    let place = Place::new();
    place.change("model/config.json", |json| json.replace(r#""vocab_size": 32"#, r#""vocab_size": 33"#));
    place.refused(&place.train(), "embed_tokens");
}

#[test]
fn a_damaged_tokenizer() {
    let place = Place::new();
    place.change("model/tokenizer.json", |json| json[..json.len() / 2].to_owned());
    place.refused_at_once(&place.train(), "model/tokenizer.json: ");
    place.change("model/tokenizer.json", |_| "{}".into());
    place.refused_at_once(&place.train(), "model/tokenizer.json: ");
}

#[test]
fn bad_prompts_are_named_by_their_line() {
    let place = Place::new();
    let bad = [
        "not json",
        r#"{"prompt": "a>"}"#,
        r#"{"prompt": "", "answer": "a"}"#,
        r#"{"prompt": 1, "answer": "a"}"#,
        "[]",
    ];
    for bad in bad {
        place.change("prompts.jsonl", |_| format!("{GOOD_LINE}\n\n{bad}\n{GOOD_LINE}\n"));
        place.refused_at_once(&place.train(), "prompts.jsonl line 3: ");
    }
    place.change("prompts.jsonl", |_| format!("{GOOD_LINE}\n{}\n", GOOD_LINE.replace("hgf", "HGF")));
    place.refused_at_once(&place.train(), "prompts.jsonl line 2: ");
}

#[test]
fn prompts_that_are_none() {
    let place = Place::new();
    for empty in ["", "\n \n"] {
        place.change("prompts.jsonl", |_| empty.into());
        place.refused_at_once(&place.train(), "prompts.jsonl has no prompts");
    }
    files::write(place.path("prompts.jsonl"), [b'{', 0xff, 0xfe]);
    place.refused_at_once(&place.train(), "cannot read prompts.jsonl: stream did not contain valid UTF-8");
    let finished = place.demo(&["--model", "model", "--prompts", "nowhere.jsonl"]);
    place.refused_at_once(&finished, "cannot read nowhere.jsonl: No such file or directory");
}

#[test]
fn a_place_that_cannot_be_written() {
    let place = Place::new();
    files::write(place.path("file"), "mine");
    fs::create_dir(place.path("full")).unwrap();
    files::write(place.path("full/mine"), "mine");
    let places = [
        ("file", "cannot write file: File exists"),
        ("file/below", "cannot write file/below: Not a directory"),
        ("full", "cannot write full: the directory is not empty"),
        ("/proc/lockstep", "cannot write /proc/lockstep: No such file or directory"),
    ];
    for (out, because) in places {
        let mut command = lockstep(place.0.path());
        command.args(["demo", "--steps", "1", "--out", out]);
        place.refused_at_once(&run(command), because);
    }
    assert_eq!(files::below(&place.path("full")), [place.path("full/mine")]);
    assert_eq!(fs::read_to_string(place.path("full/mine")).unwrap(), "mine");
}

#[test]
fn wrong_usage() {
    let place = Place::new();
    let wrong: [(&[&str], &str); 7] = [
        (&["--prompts", "prompts.jsonl"], "error: the following required arguments were not provided:"),
        (&["--model", "model"], "error: the following required arguments were not provided:"),
        (&["--frobnicate"], "error: unexpected argument '--frobnicate' found"),
        (&["--stage", "off"], "error: invalid value 'off' for '--stage <STAGE>'"),
        (&["--seed", "x"], "error: invalid value 'x' for '--seed <SEED>'"),
        (&["--sync-every=-1"], "error: invalid value '-1' for '--sync-every <N>'"),
        (&["stray"], "error: unexpected argument 'stray' found"),
    ];
    for (arguments, because) in wrong {
        let finished = place.demo(arguments);
        assert!(one_error(&finished, 3).starts_with(because), "{}", finished.stderr);
        assert!(finished.stdout.is_empty() && !place.path("out").exists());
    }
    let mut none = lockstep(place.0.path());
    none.arg("frobnicate");
    assert_eq!(one_error(&run(none), 3), "error: unrecognized subcommand 'frobnicate'");
}

#[test]
fn settings_out_of_range_or_unknown() {
    let place = Place::new();
    let wrong = [
        ("steps=0", "steps = 0: at least 1"),
        ("steps=many", "invalid type: string \"many\", expected u64"),
        ("seed=-1", "invalid value: integer `-1`, expected u64"),
        ("batch.prompts=0", "batch.prompts = 0: at least 1"),
        ("batch.answers=0", "batch.answers = 0: at least 1"),
        ("sampling.temperature=0", "temperature 0 is not above 0"),
        ("sampling.temperature=nan", "temperature NaN is not above 0"),
        ("sampling.top_p=1.5", "top_p 1.5 is not in (0, 1]"),
        ("sampling.top_p=0", "top_p 0 is not in (0, 1]"),
        ("sampling.min_p=1", "min_p 1 is not in [0, 1)"),
        ("sampling.top_k=-1", "invalid value: integer `-1`, expected u32"),
        ("sampling.max_new_tokens=0", "max_new_tokens is 0"),
        ("trainer.learning_rate=inf", "trainer.learning_rate = inf: a finite number above 0"),
        ("correction.lag_clip=[2, 1]", "correction.lag_clip = [2, 1]: an interval"),
        ("trigger.level=word", "unknown variant `word`"),
        ("sampling.topp=0.9", "unknown field `topp`"),
        ("sampling=0.9", "invalid type: floating point `0.9`, expected struct SamplingConfig"),
        ("colour=red", "unknown field `colour`"),
        ("sampling.top_p", "--set sampling.top_p: not of the form a.b=value"),
    ];
    for (setting, because) in wrong {
        place.refused_at_once(&place.demo(&["--set", setting]), because);
    }
}

#[test]
fn configuration_files_that_say_nothing_or_something_unknown() {
    let place = Place::new();
    let wrong = [
        ("[sampling]\ntopp = 0.9\n", "wrong.toml: unknown field `topp`"),
        ("colour = \"red\"\n", "wrong.toml: unknown field `colour`"),
        ("steps = \n", "wrong.toml: "),
        ("[batch]\nprompts = 0\n", "batch.prompts = 0: at least 1"),
        ("[sampling]\ntemperature = 0.0\n", "temperature 0 is not above 0"),
    ];
    for (text, because) in wrong {
        files::write(place.path("wrong.toml"), text);
        place.refused_at_once(&place.demo(&["--config", "wrong.toml"]), because);
    }
    place.refused_at_once(
        &place.demo(&["--config", "nowhere.toml"]),
        "cannot read nowhere.toml: No such file or directory",
    );
}

#[test]
fn more_tokens_than_the_model_has_positions() {
    let place = Place::new();
    let finished = place.demo(&["--set", "sampling.max_new_tokens=1000", "--set", "batch.prompts=1"]);
    place.refused_at_once(&finished, "max_new_tokens 1000 are more than the model's max_position_embeddings");
}

/// A model of a few hundred floats, so that its weights are smaller than the other files of a run.
fn smallest_model(place: &Place) {
    let config = Config {
        hidden: 2,
        inter: 2,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        ..Config::load(&small_model()).unwrap()
    };
    let weights = Weights::random(&config, 1, 1.0).unwrap();
    Qwen3::new(config, weights).unwrap().save(&place.path("model")).unwrap();
}

/// A demo of `steps` steps whose files may not grow beyond `blocks`, on a batch of `answers` answers: for a longer one the disk
/// is full.
fn on_a_full_disk(place: &Place, blocks: u32, (answers, steps): (u32, u32)) -> Finished {
    let mut command = lockstep_after(&format!("trap '' XFSZ; ulimit -f {blocks}"), place.0.path());
    command.args(["demo", "--out", "out", "--model", "model", "--prompts", "prompts.jsonl"]);
    command.arg("--steps").arg(steps.to_string());
    command.args(["--set", "batch.prompts=1", "--set", "sampling.max_new_tokens=1", "--set", "sampling.top_k=1"]);
    command.arg("--set").arg(format!("batch.answers={answers}"));
    run(command)
}

#[test]
fn a_full_disk_is_one_error_wherever_it_strikes() {
    let mut struck = Vec::new();
    let answers =
        [(0, 1), (1, 1), (2, 1), (4, 1), (8, 1), (8, 9), (16, 1)].map(|(blocks, answers)| (blocks, answers, 40));
    // The page of a short run is longer than its lines.
    for (blocks, answers, steps) in answers.into_iter().chain([(16, 1, 2), (24, 1, 2)]) {
        let place = Place::new();
        smallest_model(&place);
        let finished = on_a_full_disk(&place, blocks, (answers, steps));
        let error = one_error(&finished, 2).to_owned();
        assert!(error.contains("File too large"), "{blocks} blocks, {answers} answers: {error}");
        assert_eq!(finished.stderr.lines().last(), Some(&*error));
        whole(&place.path("out"));
        struck.push(error);
    }
    for file in ["out/config.toml", "out/weights/", "out/ledger/", "out/metrics.jsonl", "out/report.html"] {
        assert!(struck.iter().any(|error| error.contains(file)), "never struck {file}: {struck:#?}");
    }
}
