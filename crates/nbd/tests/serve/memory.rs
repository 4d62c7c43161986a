//! An export in memory that finishes commands when the test wants them finished, and counts.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
};

use uraid_nbd::{BlockSizes, Command, Export, ExportInfo, Extent, NbdError, Payload, ReplySlot};

pub(crate) const SIZE_BYTES: u64 = 8 << 20;
pub(crate) const BLOCK_BYTES: u32 = 512;

/// When commands finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Before `submit` returns.
    AtOnce,
    /// In `kick`, the last one first.
    Reversed,
    /// In `kick`, when so many are held.
    Together(usize),
    /// In another task of the same thread.
    Later,
    /// When [`Memory::release`] is called.
    OnRelease,
}

/// Seen from the test's thread.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) submits: AtomicUsize,
    pub(crate) kicks: AtomicUsize,
    pub(crate) held_max: AtomicUsize,
    pub(crate) buffers_live: Arc<AtomicUsize>,
    pub(crate) bytes_live: Arc<AtomicUsize>,
    pub(crate) bytes_max: AtomicUsize,
    /// Requests of this size find no memory.
    pub(crate) refused_bytes: AtomicUsize,
}

pub(crate) struct Memory {
    info: ExportInfo,
    finish: Finish,
    bytes: RefCell<Vec<u8>>,
    held: Rc<RefCell<Vec<Held>>>,
    counts: Arc<Counts>,
    submitted: mpsc::Sender<()>,
    later: Cell<bool>,
}

type Held = (ReplySlot<Buffer>, Result<Payload<Buffer>, NbdError>);

/// Counted, so that a leak shows.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
    bytes_live: Arc<AtomicUsize>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.live.fetch_sub(1, SeqCst);
        self.bytes_live.fetch_sub(self.bytes.len(), SeqCst);
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

pub(crate) fn info() -> ExportInfo {
    ExportInfo {
        name: "mem".into(),
        description: "memory of a test".into(),
        block_sizes: BlockSizes { minimum_bytes: BLOCK_BYTES, preferred_bytes: 4096, maximum_bytes: 4 << 20 },
        ..ExportInfo::new(SIZE_BYTES)
    }
}

impl Memory {
    pub(crate) fn new(info: ExportInfo, finish: Finish, counts: Arc<Counts>, submitted: mpsc::Sender<()>) -> Self {
        let bytes = RefCell::new(vec![0; usize::try_from(info.size_bytes).unwrap()]);
        Self { info, finish, bytes, held: Rc::default(), counts, submitted, later: Cell::new(false) }
    }

    /// Finishes all that is held.
    pub(crate) fn release(&self) {
        release(&self.held);
    }

    fn execute(&self, command: Command<Buffer>) -> Result<Payload<Buffer>, NbdError> {
        let mut bytes = self.bytes.borrow_mut();
        let range = |span: uraid_nbd::Span| span.offset_bytes as usize..span.end_bytes() as usize;
        match command {
            Command::Read { span, mut buffer } => {
                buffer.bytes.copy_from_slice(&bytes[range(span)]);
                return Ok(Payload::Data(buffer));
            }
            Command::Write { span, buffer, .. } => bytes[range(span)].copy_from_slice(&buffer.bytes),
            Command::WriteZeroes { fast: true, no_hole: true, .. } => return Err(NbdError::NotSupported),
            Command::WriteZeroes { span, .. } | Command::Trim { span, .. } => bytes[range(span)].fill(0),
            Command::Flush | Command::Cache { .. } => {}
            Command::BlockStatus { span, .. } => {
                let blocks = bytes[range(span)].chunks(BLOCK_BYTES as usize);
                let zero_runs = blocks.map(|block| block.iter().all(|&byte| byte == 0));
                let mut extents: Vec<Extent> = Vec::new();
                for zero in zero_runs {
                    match extents.last_mut() {
                        Some(last) if last.zero == zero => last.length_bytes += u64::from(BLOCK_BYTES),
                        _ => extents.push(Extent { length_bytes: BLOCK_BYTES.into(), hole: zero, zero }),
                    }
                }
                return Ok(Payload::Extents(extents));
            }
        }
        Ok(Payload::None)
    }
}

fn release(held: &RefCell<Vec<Held>>) {
    let finished = std::mem::take(&mut *held.borrow_mut());
    for (reply, outcome) in finished {
        reply.done(outcome);
    }
}

impl Export for Memory {
    type Buffer = Buffer;

    fn info(&self) -> ExportInfo {
        self.info.clone()
    }

    fn buffer(&self, length_bytes: u32) -> Option<Buffer> {
        let (counts, length) = (&self.counts, length_bytes as usize);
        if counts.refused_bytes.load(SeqCst) == length {
            return None;
        }
        counts.buffers_live.fetch_add(1, SeqCst);
        let live = counts.bytes_live.fetch_add(length, SeqCst) + length;
        counts.bytes_max.fetch_max(live, SeqCst);
        let (live, bytes_live) = (Arc::clone(&counts.buffers_live), Arc::clone(&counts.bytes_live));
        Some(Buffer { bytes: vec![0xEE; length], live, bytes_live })
    }

    fn submit(&self, command: Command<Buffer>, reply: ReplySlot<Buffer>) {
        let outcome = self.execute(command);
        self.counts.submits.fetch_add(1, SeqCst);
        if self.finish == Finish::AtOnce {
            reply.done(outcome);
        } else {
            self.held.borrow_mut().push((reply, outcome));
            self.counts.held_max.fetch_max(self.held.borrow().len(), SeqCst);
        }
        let _ = self.submitted.send(()); // the test may have looked enough
    }

    fn kick(&self) {
        self.counts.kicks.fetch_add(1, SeqCst);
        match self.finish {
            Finish::Reversed => {
                self.held.borrow_mut().reverse();
                self.release();
            }
            Finish::Together(count) if self.held.borrow().len() >= count => self.release(),
            Finish::Later if !self.later.replace(true) => {
                let held = Rc::clone(&self.held);
                tokio::task::spawn_local(async move { release(&held) });
                self.later.set(false);
            }
            Finish::AtOnce | Finish::Together(_) | Finish::Later | Finish::OnRelease => {}
        }
    }
}
