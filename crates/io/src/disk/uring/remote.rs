//! A member on a network: its operations as requests of an NBD connection, which the ring sends and receives.
//!
//! - The kernel has at most one send and one receive of a connection at a time. A send takes as many requests as wait,
//!   headers and data; a receive puts a large read's data where they belong, and what follows them into a buffer.
//! - An operation becomes one request, or several where the server takes no more at once. It ends when all of them have
//!   been answered and none of its memory is in a send.
//! - A connection that fails, or says what it may not, ends all its operations with an error and takes no more. Nobody
//!   knows then which of its writes were done, or will be. The same happens when somebody gives up on a write, a
//!   zeroing or a flush: what the server still has of it can't be told from what comes later on the connection. What
//!   this machine has not sent by then is never sent.
//! - An export that is written to has a [`Guard`], which holds everything else back before it is this process's own.
//!   What was written is flushed when the mark has counted on since and nobody has flushed it: a copy of the time
//!   before the last write has a lower count then than is known to be durable.
//! - What is received is asked for only while something is awaited. A connection that ends meanwhile is found by the
//!   next operation.

mod guard;
mod receiving;
mod sending;

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;
use std::time::Instant;

use io_uring::squeue::Entry;
use rustix::io::Errno;
use uraid_layout::{Bytes, MemberIndex};
use uraid_nbd::client::{Agreed, Part, Received, RequestIndex, Transmission};
use uraid_nbd::{Command, Span};

use super::super::{Completion, DiskError, DiskOp, OpKind, OpName};
use crate::member::{Idle, Member};
pub(crate) use guard::Claim;
use guard::Guard;
use receiving::{Receiving, Target};
use sending::Sending;

/// The most requests of a connection at a time; servers work on a few of them.
const REQUESTS_MAX: u32 = 128;

/// A read is large from here on.
const LARGE: Bytes = Bytes(16 << 10);

/// The bit of an entry's mark that says that it is a connection's; below it are the connection's number, and whether it
/// is the receive.
pub(super) const MARK: u64 = 1 << 63;

/// How one operation ended; with what it was and when it began, unless nobody waited for it.
pub(super) type Ended = (Completion, Option<(OpName, Instant)>);

/// A member's connection.
pub(super) struct Remote {
    number: u32,
    member: Arc<Member>,
    /// None: it was not there to begin with.
    connection: Option<Idle>,
    agreed: Agreed,
    transmission: Transmission,
    ops: Vec<Option<Pending>>,
    vacant: Vec<usize>,
    /// Operations of which something has yet to be asked, in order.
    queue: VecDeque<usize>,
    /// By request: what it is about.
    requests: Vec<Asked>,
    /// Requests that have not been answered, or are in a send.
    under_way: usize,
    /// Large reads among the operations.
    large: usize,
    sending: Sending,
    receiving: Receiving,
    broken: Option<Errno>,
    guard: Option<Guard>,
    /// The guard's operation.
    guarding: Option<usize>,
    /// A flush that nobody asked for.
    flushing: Option<usize>,
    /// How far the mark had counted when the last write ended, until more than that is durable.
    written_at: Option<u64>,
}

/// An operation.
struct Pending {
    op: DiskOp,
    began: Instant,
    /// How much of it was asked for: bytes, or 1 of a flush.
    asked: u64,
    /// Requests of it that have not been answered, or are in a send.
    under_way: u32,
    /// What the server answered to one of them.
    error: Option<Errno>,
    is_abandoned: bool,
    /// A flush after the writes makes up for what the server can't do with each of them.
    is_flushing: bool,
    /// How far the guard's mark had counted when a flush was asked for.
    beat: u64,
}

/// What a request is about.
#[derive(Clone, Copy, Default)]
struct Asked {
    op: usize,
    /// From where on in the operation's bytes.
    from: u64,
}

impl Remote {
    /// Borrows a member's connection.
    ///
    /// # Panics
    /// When the member is no export.
    pub(super) fn new(number: u32, member: &Arc<Member>) -> Box<Self> {
        let export = member.export().expect("only an export has a connection");
        let connection = export.borrow();
        let agreed = *export.agreed();
        let broken = connection.is_none().then_some(Errno::NOTCONN);
        Box::new(Self {
            number,
            member: Arc::clone(member),
            connection,
            agreed,
            transmission: Transmission::new(&agreed, REQUESTS_MAX),
            ops: Vec::new(),
            vacant: Vec::new(),
            queue: VecDeque::new(),
            requests: vec![Asked::default(); REQUESTS_MAX as usize],
            under_way: 0,
            large: 0,
            sending: Sending::new(),
            receiving: Receiving::new(),
            broken,
            guard: export.take_claim().map(Guard::new),
            guarding: None,
            flushing: None,
            written_at: None,
        })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether its operations are this member's.
    pub(super) fn is_of(&self, member: &Arc<Member>) -> bool {
        Arc::ptr_eq(&self.member, member)
    }

    /// How many operations have not ended.
    pub(super) fn in_flight(&self) -> usize {
        let own = usize::from(self.guarding.is_some()) + usize::from(self.flushing.is_some());
        self.ops.len() - self.vacant.len() - own
    }

    /// Whether operations wait for the guard, or would.
    pub(super) fn is_held_back(&self) -> bool {
        self.broken.is_none() && self.guard.as_ref().is_some_and(Guard::holds_back)
    }

    /// Whether something of the guard is under way.
    pub(super) fn is_guarding(&self) -> bool {
        self.guarding.is_some() || self.flushing.is_some()
    }

    /// Whether another process has the export.
    pub(super) fn is_robbed(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_robbed)
    }

    /// Whether there is something to do as time passes.
    pub(super) fn wants_ticks(&self) -> bool {
        self.broken.is_none() && self.guard.is_some()
    }

    /// Has the guard begin nothing more.
    pub(super) fn pause_guard(&mut self) {
        self.guard.iter_mut().for_each(Guard::pause);
    }

    /// Ends the use of the export, which may be another server's: nobody writes to it any more.
    pub(super) fn give_up(&mut self, ended: &mut Vec<Ended>) {
        self.member.export().expect("it is one").rob();
        if self.broken.is_none() {
            self.close(Errno::STALE, &"another server has a member");
        }
        self.end_if_broken(ended);
    }

    /// Whether somebody waits for an operation that it has for a place.
    pub(super) fn is_awaited(&self, place: MemberIndex) -> bool {
        // The guard's operation is at no place.
        self.ops.iter().flatten().any(|pending| pending.op.member == place && !pending.is_abandoned)
    }

    /// How many entries of it the kernel has.
    pub(super) fn with_kernel(&self) -> usize {
        usize::from(self.sending.is_out()) + usize::from(self.receiving.is_out())
    }

    /// Whether the kernel has something of it.
    pub(super) fn is_with_kernel(&self) -> bool {
        self.with_kernel() > 0
    }

    /// Takes an operation.
    pub(super) fn submit(&mut self, op: DiskOp, ended: &mut Vec<Ended>) {
        let cannot = matches!(op.kind, OpKind::Zero { .. }) && !self.agreed.can_zero();
        if cannot {
            let error = DiskError::Unsupported { op: op.info() };
            return ended.push((op.complete(Err(error)), None));
        }
        if let Some(errno) = self.broken {
            let error = DiskError::Io { op: op.info(), errno };
            return ended.push((op.complete(Err(error)), None));
        }
        let index = self.take_place(op);
        self.queue.push_back(index);
    }

    fn take_place(&mut self, op: DiskOp) -> usize {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        self.large += usize::from(is_large(&op));
        let began = Instant::now();
        let (is_abandoned, is_flushing) = (false, false);
        let (asked, under_way, error, beat) = (0, 0, None, 0);
        self.ops[index] = Some(Pending { op, began, asked, under_way, error, is_abandoned, is_flushing, beat });
        index
    }

    /// Has the guard's next operation go before all others.
    fn guard(&mut self, op: Option<DiskOp>) {
        let Some(op) = op else { return };
        let index = self.take_place(op);
        self.guarding = Some(index);
        self.queue.push_front(index);
    }

    /// The guard's operation has ended.
    fn end_guarding(&mut self, index: usize, error: Option<Errno>) {
        self.ops[index] = None;
        self.vacant.push(index);
        self.guarding = None;
        let Some(guard) = self.guard.as_mut().filter(|_| self.broken.is_none()) else { return };
        if let Some(errno) = error {
            tracing::warn!(member = %self.member.path().display(), %errno, "the mark of its owner can't be kept");
        }
        let export = self.member.export().expect("it is one");
        let next = guard.ended(error.is_none(), |beat| export.mark(beat));
        if guard.take_news() {
            export.note_heard();
        }
        if guard.is_robbed() {
            let owner = guard.found().map_or_else(|| "nobody, by its mark".to_owned(), |owner| owner.to_string());
            tracing::error!(member = %self.member.path().display(), owner, "another server has the member");
        }
        self.guard(next);
        self.flush_if_quiet();
    }

    /// Flushes what was written last if the mark has counted on since.
    fn flush_if_quiet(&mut self) {
        let Some(guard) = self.guard.as_ref().filter(|guard| !guard.holds_back() && !guard.is_paused()) else { return };
        let has_counted_on = self.written_at.is_some_and(|beat| guard.beat_taken() > beat);
        if !has_counted_on || self.flushing.is_some() {
            return;
        }
        let durable = self.member.export().expect("it is one").flushed_beat();
        if self.written_at.take() < Some(durable) {
            return;
        }
        let index = self.take_place(guard::flush());
        self.flushing = Some(index);
        self.queue.push_back(index);
    }

    /// A flush that nobody asked for has ended. What it found may never be said again.
    fn end_flushing(&mut self, index: usize, error: Option<Errno>) {
        let pending = self.ops[index].take().expect("it has not ended");
        self.vacant.push(index);
        self.flushing = None;
        match error {
            None => self.member.export().expect("it is one").note_flushed_beat(pending.beat),
            Some(errno) => self.break_off(errno, &"what was written to it can't be flushed"),
        }
    }

    /// The next entry for the ring: a send or a receive.
    pub(super) fn next_entry(&mut self) -> Option<Entry> {
        let file = self.file()?;
        if self.broken.is_some() {
            return None;
        }
        let mark = MARK | u64::from(self.number) << 1;
        let guarded = self.guard.as_mut().and_then(Guard::next_op);
        self.guard(guarded);
        if self.sending.is_in_part() && self.guard.as_ref().is_some_and(Guard::has_lapsed) {
            // The guard can't ask first any more.
            self.break_off(Errno::TIMEDOUT, &"a send was interrupted for too long");
            return None;
        }
        if !self.sending.is_out() {
            self.fill_send();
            if let Some(entry) = self.sending.describe(file) {
                return Some(entry.user_data(mark));
            }
        }
        if self.receiving.is_out() || self.under_way == 0 {
            return None;
        }
        let op = self.receiving.target().and_then(|Target { op, .. }| self.ops[op].as_ref());
        let segments = op.map(|pending| pending.op.segments.as_slice());
        Some(self.receiving.describe(file, segments, self.large > 0).user_data(mark | 1))
    }

    /// Takes the kernel's answer to a send or a receive.
    pub(super) fn answered(&mut self, is_receive: bool, answer: i32, ended: &mut Vec<Ended>) {
        let errno = || Errno::from_raw_os_error(answer.saturating_neg());
        if is_receive {
            self.receiving.came_back();
            match usize::try_from(answer) {
                Ok(0) => self.break_off(Errno::CONNRESET, &"the server ended the connection"),
                Ok(count) => self.take_in(count, ended),
                Err(_) if is_passing(errno()) => {}
                Err(_) => self.break_off(errno(), &"nothing can be received from the server"),
            }
        } else {
            match usize::try_from(answer) {
                Ok(count) if self.sending.sent(count) => self.end_send(ended),
                Ok(_) => {}
                Err(_) if is_passing(errno()) => self.sending.came_back(),
                Err(_) => {
                    self.sending.came_back();
                    self.break_off(errno(), &"nothing can be sent to the server");
                }
            }
        }
        self.end_if_broken(ended);
    }

    /// Notes that nobody waits any more for the operation with this tag, if it is here.
    pub(super) fn abandon(&mut self, tag: u64, ended: &mut Vec<Ended>) {
        let Some(index) = self.ops.iter().position(|op| op.as_ref().is_some_and(|pending| pending.op.tag == tag))
        else {
            return;
        };
        let pending = self.ops[index].as_mut().expect("it was just found");
        pending.is_abandoned = true;
        let (is_read, is_unsent) = (pending.op.kind == OpKind::Read, pending.asked == 0);
        if is_unsent {
            self.queue.retain(|&waiting| waiting != index);
            self.end(index, Some(Errno::TIMEDOUT), ended);
        }
        if !is_read {
            self.break_off(Errno::TIMEDOUT, &"a change that was asked for was given up");
            self.end_if_broken(ended);
        }
    }

    /// Ends the use of the connection: it goes back to its member if nothing is under way, and is closed otherwise.
    pub(super) fn retire(&mut self, ended: &mut Vec<Ended>) {
        let is_idle = self.in_flight() == 0 && !self.is_with_kernel() && self.receiving.is_empty();
        let export = self.member.export().expect("it is one");
        if let Some(guard) = self.guard.take() {
            export.put_claim(guard.into_claim());
        }
        match self.connection.take_if(|_| is_idle && self.broken.is_none()) {
            Some(connection) => {
                export.give_back(connection);
                self.broken = Some(Errno::NOTCONN);
            }
            None if self.broken.is_none() => {
                self.close(Errno::CONNABORTED, &"its member is not used any more");
                self.end_if_broken(ended);
            }
            None => {}
        }
    }

    fn file(&mut self) -> Option<RawFd> {
        Some(self.connection.as_mut()?.stream().as_fd().as_raw_fd())
    }

    /// Gives the connection up, which is used no more than this member from then on.
    fn break_off(&mut self, errno: Errno, why: &dyn std::fmt::Display) {
        if self.broken.is_none() {
            self.member.export().expect("it is one").cut_off();
            self.close(errno, why);
        }
    }

    /// Closes the connection. Whatever the kernel has of it comes back soon.
    fn close(&mut self, errno: Errno, why: &dyn std::fmt::Display) {
        self.broken = Some(errno);
        let (path, in_flight) = (self.member.path().display(), self.in_flight());
        tracing::warn!(member = %path, in_flight, %errno, "the connection is given up: {why}");
        let Some(connection) = &mut self.connection else { return };
        if let Err(error) = connection.stream().abort() {
            tracing::debug!(%error, "it was closed already");
        }
    }

    /// Ends everything, once the connection is given up and the kernel has nothing of it.
    pub(super) fn end_if_broken(&mut self, ended: &mut Vec<Ended>) {
        let Some(errno) = self.broken.filter(|_| !self.is_with_kernel()) else { return };
        self.queue.clear();
        for index in 0..self.ops.len() {
            if self.ops[index].is_some() {
                self.end(index, Some(errno), ended);
            }
        }
        // The peer is told by this that nobody is there any more.
        self.connection = None;
    }

    /// Puts as many requests into the next send as there are and fit.
    fn fill_send(&mut self) {
        while let Some(&index) = self.queue.front() {
            if self.guarding != Some(index) && self.is_held_back() {
                return;
            }
            let pending = self.ops[index].as_mut().expect("what waits has not ended");
            let (command, length) = pending.next_command(&self.agreed);
            if !self.sending.has_room() {
                return;
            }
            let Some((request, header)) = self.transmission.begin(&command) else { return };
            let from = pending.asked;
            let is_write = matches!(command, Command::Write { .. });
            if command == Command::Flush {
                pending.beat = self.guard.as_ref().map_or(0, Guard::beat_taken);
            }
            let data = is_write.then(|| (pending.op.segments.as_slice(), from, length));
            self.sending.add(request, header, data);
            self.requests[request.get()] = Asked { op: index, from };
            pending.asked += length;
            pending.under_way += 1;
            self.under_way += 1;
            if pending.is_asked() {
                self.queue.pop_front();
            }
        }
    }

    /// A send is over: what was answered before that was known ends now.
    fn end_send(&mut self, ended: &mut Vec<Ended>) {
        while let Some((request, result)) = self.sending.next_answered() {
            self.end_request(request, result, ended);
        }
    }

    /// Takes in what was received: data where the kernel has put them, and replies from the buffer.
    fn take_in(&mut self, count: usize, ended: &mut Vec<Ended>) {
        self.receiving.received(count);
        loop {
            if let Some(Target { op, .. }) = self.receiving.target() {
                let pending = self.ops[op].as_mut().expect("its operation waits");
                if !self.receiving.copy_to(&mut pending.op.segments) {
                    return;
                }
                if let Some((request, result)) = self.receiving.end_target() {
                    self.note_end(request, result, ended);
                }
            }
            let mut input = self.receiving.input();
            let before = input.len();
            match self.transmission.next(&mut input) {
                Ok(None) => {
                    let used = before - input.len();
                    self.receiving.consume(used);
                    return self.receiving.compact();
                }
                Ok(Some(received)) => {
                    let used = before - input.len();
                    self.receiving.consume(used);
                    self.take_part(received, ended);
                }
                Err(error) => return self.break_off(Errno::PROTO, &error),
            }
        }
    }

    /// Takes in one part of a reply, but for the data that follow it.
    fn take_part(&mut self, received: Received, ended: &mut Vec<Ended>) {
        let Received { request, part, ended: end } = received;
        let Asked { op, from } = self.requests[request.get()];
        match part {
            Part::None => {}
            Part::Zeros { at_bytes, length_bytes } => {
                let pending = self.ops[op].as_mut().expect("an operation waits for its requests");
                let from = from + u64::from(at_bytes);
                receiving::zero(&mut pending.op.segments, from, u64::from(length_bytes));
            }
            Part::Data { at_bytes, length_bytes } => {
                let from = from + u64::from(at_bytes);
                let end = end.map(|result| (request, result));
                return self.receiving.aim(Target { op, from, left: u64::from(length_bytes), end });
            }
        }
        if let Some(result) = end {
            self.note_end(request, result, ended);
        }
    }

    /// A request was answered; it ends now, or with the send that it is in.
    fn note_end(&mut self, request: RequestIndex, result: Result<(), u32>, ended: &mut Vec<Ended>) {
        if !self.sending.note_answered(request, result) {
            self.end_request(request, result, ended);
        }
    }

    fn end_request(&mut self, request: RequestIndex, result: Result<(), u32>, ended: &mut Vec<Ended>) {
        let Asked { op: index, .. } = self.requests[request.get()];
        let pending = self.ops[index].as_mut().expect("an operation waits for its requests");
        pending.under_way -= 1;
        self.under_way -= 1;
        pending.error = pending.error.or(result.err().map(errno_of));
        if pending.under_way > 0 || !pending.is_asked() && pending.error.is_none() {
            return;
        }
        let makes_up = pending.op.kind == OpKind::WriteFua && !self.agreed.can_fua();
        if makes_up && !pending.is_flushing && pending.error.is_none() {
            pending.is_flushing = true;
            pending.asked = 0;
            return self.queue.push_back(index);
        }
        let error = pending.error;
        if error.is_some() {
            // The rest of it need not be asked.
            self.queue.retain(|&waiting| waiting != index);
        }
        self.end(index, error, ended);
    }

    /// Ends an operation of which nothing is under way.
    fn end(&mut self, index: usize, error: Option<Errno>, ended: &mut Vec<Ended>) {
        if self.guarding == Some(index) {
            return self.end_guarding(index, error);
        }
        if self.flushing == Some(index) {
            return self.end_flushing(index, error);
        }
        let Pending { op, began, is_abandoned, beat, .. } = self.ops[index].take().expect("it has not ended");
        if error.is_none() {
            self.member.export().expect("it is one").note_flushed_beat(beat);
        }
        if matches!(op.kind, OpKind::Write | OpKind::WriteFua | OpKind::Zero { .. }) {
            self.written_at = self.guard.as_ref().map(Guard::beat);
        }
        self.vacant.push(index);
        self.large -= usize::from(is_large(&op));
        let info = op.info();
        let result = match error {
            None => Ok(()),
            Some(Errno::TIMEDOUT) if is_abandoned => Err(DiskError::TimedOut { op: info }),
            Some(errno) if info.name == OpName::Zero && is_refusal(errno) => Err(DiskError::Unsupported { op: info }),
            Some(errno) => Err(DiskError::Io { op: info, errno }),
        };
        let timed = (!is_abandoned).then_some((info.name, began));
        ended.push((op.complete(result), timed));
    }
}

impl Pending {
    /// What is to be asked next, and how much of the operation that is.
    fn next_command(&self, agreed: &Agreed) -> (Command<()>, u64) {
        let (kind, len) = (self.op.kind, self.op.len().0);
        let piece = |most: u64| {
            let span = Span { offset_bytes: self.op.offset.0 + self.asked, length_bytes: (len - self.asked).min(most) };
            (span, span.length_bytes)
        };
        let data_max = u64::from(agreed.block_sizes().maximum_bytes);
        match kind {
            OpKind::Read => {
                let (span, length) = piece(data_max);
                (Command::Read { span, buffer: () }, length)
            }
            OpKind::Write | OpKind::WriteFua if !self.is_flushing => {
                let (span, length) = piece(data_max);
                let fua = kind == OpKind::WriteFua && agreed.can_fua();
                (Command::Write { span, buffer: (), fua }, length)
            }
            OpKind::Zero { may_punch, .. } => {
                let (span, length) = piece(agreed.range_bytes_max());
                let fast = agreed.can_zero_fast();
                (Command::WriteZeroes { span, fua: false, no_hole: !may_punch, fast }, length)
            }
            OpKind::Flush | OpKind::Write | OpKind::WriteFua => (Command::Flush, 1),
        }
    }

    /// Whether all of it was asked for.
    fn is_asked(&self) -> bool {
        let Bytes(len) = self.op.len();
        self.asked == if self.op.kind == OpKind::Flush || self.is_flushing { 1 } else { len }
    }
}

/// Whether it is a read whose data are to be received where they belong.
fn is_large(op: &DiskOp) -> bool {
    op.kind == OpKind::Read && op.len() >= LARGE
}

/// Whether the kernel wants to be asked again.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN)
}

/// What a server says that can't make zeros, or not fast.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL)
}

/// The system's number for an error of the protocol's, which has them from there. One of no use is an I/O error.
fn errno_of(code: u32) -> Errno {
    match i32::try_from(code) {
        Ok(code @ 1..4096) => Errno::from_raw_os_error(code),
        Ok(_) | Err(_) => Errno::IO,
    }
}

#[cfg(test)]
mod tests;
