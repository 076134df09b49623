//! The Qwen3 models of `candle_transformers`, in this process, as they are: another engine for the conformance suite.
//!
//! Forward, caches and draws are candle's. A later turn of a conversation goes on from the cache that the turns before it
//! left, as an engine with prefix reuse does; whatever candle makes of that is what is drawn from and reported.

mod bench;
mod draw;
mod model;
mod sampler;

pub use sampler::CandleSampler;

/// A model of `candle_transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandleModel {
    /// `models::qwen3` in f32.
    Qwen3,
    /// `models::quantized_qwen3`, the weights as f32 in a GGUF file with the keys that llama.cpp's converter writes.
    QuantizedQwen3,
}

impl CandleModel {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::QuantizedQwen3 => "quantized-qwen3",
        }
    }
}

impl std::str::FromStr for CandleModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Qwen3, Self::QuantizedQwen3];
        let found = known.into_iter().find(|model| model.name() == text);
        found.ok_or_else(|| format!("candle model {text:?} is not known; known are qwen3 and quantized-qwen3"))
    }
}
