//! A fault for `asan.sh` to find: a sanitizer that is not at work finds nothing.

#[test]
#[ignore = "reads past a buffer on purpose, for kernels/asan.sh"]
fn a_read_past_a_buffer() {
    let buffer = std::hint::black_box(vec![1f32; 33]);
    #[expect(unsafe_code, reason = "the fault that is planted")]
    // SAFETY: none; entry 33 of 33 is outside.
    let past = unsafe { buffer.as_ptr().add(buffer.len()).read_volatile() };
    std::hint::black_box(past);
}
