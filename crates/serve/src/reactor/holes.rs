//! Finding out, when the server starts, which parts of the array read as zeros: those that are holes of all members;
//! and which members can give space back.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::timeout;
use uraid_io::engine::Status;
use uraid_io::member::{Member, MemberError};
use uraid_layout::{Bytes, MemberIndex, MemberSet};

use super::Reactor;
use crate::disk::LiveDisk;

/// Holes of one member that are looked for; what is beyond counts as content.
const HOLES_MAX: usize = 1 << 16;

/// How long clients wait for it.
const TIME_MAX: Duration = Duration::from_millis(500);

/// Holes of each member, by slot.
type Holes = Vec<Vec<Range<Bytes>>>;

/// Tells the engine, before clients come unless that takes long.
pub(crate) async fn search<D: LiveDisk>(reactor: Rc<Reactor<D>>) {
    // It goes on meanwhile.
    let _ = timeout(TIME_MAX, spawn_local(find_out(reactor))).await;
}

async fn find_out<D: LiveDisk>(reactor: Rc<Reactor<D>>) {
    let count = reactor.engine.borrow().geometry().members();
    let members: Vec<_> = reactor.engine.borrow().disk().members().iter().take(count).cloned().collect();
    let searches = reactor.engine.borrow().zeros().begin_search();
    let asked = members.clone();
    let Ok(able) = spawn_blocking(move || able(&asked)).await else { return };
    reactor.engine.borrow().note_can_punch(able);
    if !searches {
        return;
    }
    let found = spawn_blocking(move || find(&members)).await;
    let (holes, status) = match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            tracing::debug!(%error, "holes of a member do not tell what reads as zeros");
            (Vec::new(), Status::Data)
        }
        // The server ends.
        Err(_) => return,
    };
    reactor.engine.borrow().zeros().end_search(&holes, status);
}

/// The members that can give space back.
fn able(members: &[Option<Arc<Member>>]) -> MemberSet {
    let slots = (0..).map(MemberIndex).zip(members);
    slots.filter(|(_, member)| member.as_ref().is_some_and(|member| member.can_punch())).map(|(slot, _)| slot).collect()
}

/// The holes of all members.
fn find(members: &[Option<Arc<Member>>]) -> Result<(Holes, Status), MemberError> {
    let mut status = Status::Hole;
    let mut holes = Vec::new();
    for member in members.iter().flatten() {
        let (found, lacks_space) = member.holes(HOLES_MAX)?;
        status = if lacks_space { status } else { Status::Zeros };
        holes.push(found);
    }
    Ok((holes, status))
}
