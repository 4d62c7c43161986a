//! Members that do at once what they are told: what recovery runs on when nothing more happens to it.

use std::cell::RefCell;
use std::rc::Rc;

use rustix::io::Errno;
use uraid_io::Error;
use uraid_io::disk::{Completion, Disk, DiskError, DiskOp, OpKind};
use uraid_layout::{Bytes, MemberIndex};

use super::moves::{fill, for_each_sector, seat};
use crate::image::{Image, ZEROS};

/// A handle on members' content.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    world: Rc<RefCell<World>>,
}

#[derive(Debug)]
struct World {
    images: Vec<Option<Image>>,
    /// Where the first log device is.
    logs: Option<MemberIndex>,
    done: Vec<Completion>,
}

impl Plain {
    /// Members by slot.
    #[must_use]
    pub(super) fn new(images: Vec<Option<Image>>) -> Self {
        Self { world: Rc::new(RefCell::new(World { images, logs: None, done: Vec::new() })) }
    }

    /// The same, of which log devices begin there.
    #[must_use]
    pub(super) fn with_logs(self, first: MemberIndex) -> Self {
        self.world.borrow_mut().logs = Some(first);
        self
    }

    /// What they hold now.
    #[must_use]
    pub(super) fn images(&self) -> Vec<Option<Image>> {
        self.world.borrow().images.clone()
    }
}

impl World {
    fn run(&mut self, op: &mut DiskOp) -> Result<(), DiskError> {
        let image = self.images.get_mut(seat(op.member, self.logs).index()).and_then(Option::as_mut);
        let image = image.ok_or_else(|| DiskError::Io { op: op.info(), errno: Errno::NODEV })?;
        op.check_end(image.size())?;
        match op.kind {
            OpKind::Read => fill(op, image),
            OpKind::Write | OpKind::WriteFua => for_each_sector(op, |offset, sector| image.set(offset, sector)),
            OpKind::Zero { len, .. } => {
                let (start, end) = (op.offset.0, op.offset.0 + len.0);
                (start..end).step_by(ZEROS.len()).for_each(|at| image.set(Bytes(at), &ZEROS));
            }
            OpKind::Flush => {}
        }
        Ok(())
    }
}

impl Disk for Plain {
    fn submit(&mut self, mut op: DiskOp) {
        op.check();
        let mut world = self.world.borrow_mut();
        let result = world.run(&mut op);
        world.done.push(op.complete(result));
    }

    fn kick(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.world.borrow_mut().done);
    }

    fn wait(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.world.borrow().done.len()
    }
}
