//! Writes the generated code of the wire contract where it is committed: `make proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = lockstep_tests::proto::committed();
    let directory = target.parent().ok_or("the generated file has no directory")?;
    lockstep_tests::proto::generate(directory)
}
