//! How fast the engine is: a tiny model in batches, and one row of logits of a real vocabulary.
//!
//!     RAYON_NUM_THREADS=1 cargo run --release -p lockstep-engine --example speed

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use candle_core::{D, Device, Tensor};
use lockstep_engine::generate::{Filters, HEAD, Request, generate};
use lockstep_engine::{Config, Pass, Qwen3, Result, Weights};
use lockstep_kernels::{Chain, Filter, philox, truncate};
use std::ops::ControlFlow;
use std::time::Instant;

const TINY: Config = Config {
    vocab: 40,
    hidden: 64,
    inter: 192,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    max_positions: 64,
    rope_theta: 1e6,
    rms_eps: 1e-6,
    tied: true,
    eos: Vec::new(),
};

/// The median of nine runs in milliseconds.
fn time(name: &str, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let mut millis = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        run()?;
        millis.push(start.elapsed().as_secs_f64() * 1e3);
    }
    millis.sort_by(f64::total_cmp);
    println!("{name:<58} {:8.2} ms (least {:.2})", millis[4], millis[0]);
    Ok(())
}

fn requests(filters: Filters) -> Vec<Request> {
    let request = |number| Request {
        prompt: (0..10).map(|i| (number as u32 * 7 + i * 3) % 40).collect(),
        generated: Vec::new(),
        filters,
        seed: 1,
        number,
        stop: Vec::new(),
        max_new: 10,
    };
    (0..512).map(request).collect()
}

fn forward_backward(model: &Qwen3) -> Result<()> {
    let ids: Vec<u32> = (0..512 * 20).map(|i| (i * 7 + i / 20) % 40).collect();
    let ids = Tensor::from_vec(ids, (512, 20), &Device::Cpu)?;
    let next = ids.narrow(1, 1, 19)?.contiguous()?.flatten_all()?.unsqueeze(1)?;
    let rows = ids.to_vec2::<u32>()?;
    let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    time("forward of [512, 20], scoring", || model.logits(&model.hidden_packed(&rows, Pass::Score)?).map(drop))?;
    time("forward of [512, 20], training", || model.logits(&model.hidden(&ids)?).map(drop))?;
    time("forward and backward of [512, 20]", || {
        let logits = model.logits(&model.hidden(&ids)?)?.narrow(1, 0, 19)?.reshape(((), 40))?;
        let loss = candle_nn::ops::log_softmax(&logits, D::Minus1)?.gather(&next, D::Minus1)?.mean_all()?;
        loss.backward().map(drop)?;
        Ok(())
    })
}

fn long_rows() -> Result<()> {
    let row: Vec<f32> = (0..151_936).map(|i| 2.5 * philox::normal(1, 1, i) as f32).collect();
    let chains = [
        ("one row of 151,936, top_p 0.97", vec![Filter::Temperature(1.0), Filter::TopP(0.97)]),
        ("one row of 151,936, top_k 50", vec![Filter::Temperature(1.0), Filter::TopK(50)]),
        ("one row of 151,936, min_p 0.05", vec![Filter::Temperature(1.0), Filter::MinP(0.05)]),
        ("one row of 151,936, untruncated", vec![Filter::Temperature(1.0)]),
    ];
    for (name, filters) in chains {
        let chain = Chain::new(filters).map_err(|source| lockstep_engine::Error::Kernel { request: 0, source })?;
        let mut kept = 0;
        time(name, || {
            kept = truncate(&row, &chain).map_or(0, |kept| kept.ids.len());
            Ok(())
        })?;
        println!("    keeps {kept}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let model = Qwen3::new(TINY, Weights::random(&TINY, 1, 0.1)?)?;
    for (name, top_p) in [("untruncated", 1.0), ("top_p 0.9", 0.9)] {
        let requests = requests(Filters { temperature: 1.0, top_k: 0, top_p, min_p: 0.0 });
        time(&format!("512 rows x 10 new tokens after 10, {name}"), || {
            generate(&model, &requests, HEAD, |_, _| ControlFlow::Continue(())).map(drop)
        })?;
    }
    forward_backward(&model)?;
    long_rows()
}
