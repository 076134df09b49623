//! The committed wire code is what the contract generates.

use lockstep_tests::proto;

#[test]
fn the_generated_code_is_current() {
    let directory = tempfile::tempdir().unwrap();
    proto::generate(directory.path()).unwrap();
    let generated = std::fs::read_to_string(directory.path().join("lockstep.v1.rs")).unwrap();
    let committed = std::fs::read_to_string(proto::committed()).unwrap();
    assert!(generated == committed, "middleware/src/wire/lockstep.v1.rs is not current: run `make proto`");
}
