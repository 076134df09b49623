//! The kernels on a card, through the CUDA driver, which is opened when the first card is: a program with this feature starts
//! without one. Every launch is asynchronous on the stream it is given; what it computes is defined by the functions of the
//! same name elsewhere in this crate.
#![expect(unsafe_code, reason = "a kernel takes raw device pointers; each launch says why its bounds hold")]

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaModule, CudaStream, DriverError, LaunchArgs, LaunchConfig,
};
use cudarc::nvrtc::Ptx;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

mod head;
mod layout;
mod rows;
mod update;

pub use cudarc;
pub use head::{HeadLogits, Known, Listed, Runs};
pub use layout::{HeadRow, HeadScores, RatioSums};
pub use rows::Sampled;
pub use update::{Q8, Q8_BATCH, UpdateSlot};

/// Threads of a block, as in `cuda/block.cuh`.
const THREADS: u32 = 256;

/// Warps of a block.
const WARPS: u32 = THREADS / 32;

/// A card that cannot be used, or a launch it refused.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No driver.
    #[error("{0} is not on this machine; it comes with the NVIDIA driver")]
    NoDriver(&'static str),
    /// The driver's own words.
    #[error("CUDA: {0}")]
    Driver(#[from] DriverError),
    /// A buffer too short for its launch.
    #[error("{kernel}: {buffer} has {found} entries, needs {needed}")]
    Short {
        /// The kernel.
        kernel: &'static str,
        /// The buffer.
        buffer: &'static str,
        /// Its length.
        found: usize,
        /// What the launch reads or writes.
        needed: usize,
    },
    /// A matrix whose rows are no whole blocks.
    #[error("rows of {0} weights are no whole blocks of 32")]
    Width(usize),
    /// An input the definition refuses as well.
    #[error(transparent)]
    Input(#[from] crate::Error),
}

/// What every launch gives.
pub type CudaResult<T> = Result<T, CudaError>;

/// One file of `cuda/`: for sm_90 as it runs, for others as PTX the driver compiles.
struct Image {
    cubin: &'static [u8],
    ptx: &'static str,
}

macro_rules! image {
    ($name:literal) => {
        Image {
            cubin: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".cubin")),
            ptx: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")),
        }
    };
}

/// Files of `cuda/`.
const FILES: usize = 7;

static IMAGES: [Image; FILES] = [
    image!("adamw"),
    image!("ess"),
    image!("head_backward"),
    image!("head_listed"),
    image!("head_scores"),
    image!("q8_gemv"),
    image!("sample_report"),
];

/// Every kernel, by the file it is in and its name there.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    AdamW,
    RatioSums,
    SequenceLogRatios,
    HeadBackward,
    ListedLogits,
    ListedSums,
    HeadScores,
    Q8Gemv,
    SampleReport,
}

impl Kernel {
    fn place(self) -> (usize, &'static str) {
        match self {
            Self::AdamW => (0, "adamw"),
            Self::RatioSums => (1, "ratio_sums"),
            Self::SequenceLogRatios => (1, "sequence_log_ratios"),
            Self::HeadBackward => (2, "head_backward"),
            Self::ListedLogits => (3, "listed_logits"),
            Self::ListedSums => (3, "listed_sums"),
            Self::HeadScores => (4, "head_scores"),
            Self::Q8Gemv => (5, "q8_gemv"),
            Self::SampleReport => (6, "sample_report"),
        }
    }
}

/// Beginning and end of a launch.
type Span = Option<(CudaEvent, CudaEvent)>;

/// The kernels in one context, on one stream. A file is loaded when it is first asked for.
#[derive(Debug, Clone)]
pub struct Kernels {
    stream: Arc<CudaStream>,
    modules: Arc<[OnceLock<Arc<CudaModule>>; FILES]>,
    /// Beginning and end of the last launch, where launches are timed.
    timed: Option<Arc<Mutex<Span>>>,
}

/// The name of the driver's library.
const DRIVER: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Whether this machine has the driver's library. cudarc panics where it is not.
///
/// # Errors
/// [`CudaError::NoDriver`].
pub fn driver_present() -> CudaResult<()> {
    // SAFETY: the library's initialiser is the driver's own, which the first CUDA call would run as well.
    let opened = unsafe { libloading::Library::new(DRIVER) };
    opened.map(drop).map_err(|_| CudaError::NoDriver(DRIVER))
}

impl Kernels {
    /// A card of this machine, counted from 0, and its default stream.
    ///
    /// # Errors
    /// No driver, no such card.
    pub fn open(ordinal: usize) -> CudaResult<Self> {
        driver_present()?;
        Ok(Self::on(CudaContext::new(ordinal)?.default_stream()))
    }

    /// On a stream that is there already.
    pub fn on(stream: Arc<CudaStream>) -> Self {
        Self { stream, modules: Arc::new([const { OnceLock::new() }; FILES]), timed: None }
    }

    /// The same, with a clock on every launch.
    #[must_use]
    pub fn timed(self) -> Self {
        Self { timed: Some(Arc::default()), ..self }
    }

    /// How long the kernel of the last launch ran, in microseconds, by the card's clock; waits for it. `None` where launches are
    /// not timed or there was none.
    ///
    /// # Errors
    /// The launch failed.
    pub fn last_us(&self) -> CudaResult<Option<f64>> {
        let Some(timed) = &self.timed else { return Ok(None) };
        let last = timed.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = last.as_ref().map(|(start, end)| start.elapsed_ms(end)).transpose()?;
        Ok(elapsed.map(|ms| f64::from(ms) * 1e3))
    }

    /// # Safety
    /// The arguments are those of the kernel, in its order, and every access of `grid` through them is inside its buffer.
    unsafe fn launch(&self, mut launch: LaunchArgs<'_>, grid: LaunchConfig) -> CudaResult<()> {
        if self.timed.is_some() {
            launch.record_kernel_launch(CUevent_flags::CU_EVENT_DEFAULT);
        }
        // SAFETY: the caller's promise.
        let events = unsafe { launch.launch(grid) }?;
        if let Some(timed) = &self.timed {
            *timed.lock().unwrap_or_else(PoisonError::into_inner) = events;
        }
        Ok(())
    }

    /// The stream of every launch.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn function(&self, kernel: Kernel) -> CudaResult<CudaFunction> {
        let (file, name) = kernel.place();
        let module = match self.modules[file].get() {
            Some(module) => module.clone(),
            None => {
                let module = self.load(&IMAGES[file])?;
                self.modules[file].get_or_init(|| module).clone()
            }
        };
        Ok(module.load_function(name)?)
    }

    fn load(&self, image: &Image) -> CudaResult<Arc<CudaModule>> {
        let context = self.stream.context();
        let (major, _) = context.compute_capability()?;
        let image = if major == 9 { Ptx::from_binary(image.cubin.to_vec()) } else { Ptx::from_src(image.ptx) };
        Ok(context.load_module(image)?)
    }
}

/// `blocks` blocks of [`THREADS`].
fn blocks(blocks: usize) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

/// Refuses a buffer that is shorter than a launch takes it for.
fn long_enough(kernel: &'static str, buffers: &[(&'static str, usize, usize)]) -> CudaResult<()> {
    match buffers.iter().find(|(_, found, needed)| found < needed) {
        Some(&(buffer, found, needed)) => Err(CudaError::Short { kernel, buffer, found, needed }),
        None => Ok(()),
    }
}
