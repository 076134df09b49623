//! Bytes as a frame of the ledger: they are one or they are not, and what is read is written again as it was.
//!
//! The first byte says whether the checksum is made to fit, without which little gets past it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lockstep::ledger::{decode_frame, encode_frame};

fuzz_target!(|data: &[u8]| {
    let Some((&first, frame)) = data.split_first() else { return };
    let _ = decode_frame(frame);
    let fitted;
    let frame = if first & 1 == 1 {
        fitted = fit(frame);
        &fitted[..]
    } else {
        frame
    };
    let Ok((record, size)) = decode_frame(frame) else { return };
    assert!(size <= frame.len());
    let again = match encode_frame(&record) {
        Ok(again) => again,
        // The columns of version 1 could contradict themselves, which the form of version 2 has no way to say.
        Err(error) => {
            assert_eq!(frame[4], 1, "{error}");
            return;
        }
    };
    let (_, length) = decode_frame(&again).expect("what was written is read");
    assert_eq!(length, again.len());
    // As bytes, because no NaN equals itself.
    let (read, _) = decode_frame(&again).expect("what was written is read");
    assert_eq!(encode_frame(&read).expect("what was read fits a frame"), again);
});

/// A frame of these bytes as its payload.
fn fit(payload: &[u8]) -> Vec<u8> {
    let version = if payload.first().is_some_and(|byte| byte & 0x80 > 0) { 1u16 } else { 2 };
    let payload = payload.get(1..).unwrap_or_default();
    let mut frame = b"LKSF".to_vec();
    frame.extend(version.to_le_bytes());
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(payload);
    let checksum = crc32(&frame[4..]);
    frame.extend(checksum.to_le_bytes());
    frame
}

/// CRC-32 (IEEE), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}
