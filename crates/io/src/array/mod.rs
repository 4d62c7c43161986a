//! Arrays as a whole: made of members, opened from them, brought back into agreement.
//!
//! [`judge`] decides from superblocks alone; [`Array::open`] reads them from members and refuses what is unsafe;
//! [`Assembled`] brings the members into agreement; [`select`] finds those of one array among others; [`create`] makes
//! new ones, [`format()`] from members that are open, and [`Assembled::configure`] changes how they are kept
//! consistent, and [`Assembled::grow`] how much of their members they use; [`join`] and [`rejoin`] have members ready
//! for an array that runs. What clients do with an array is the [`engine`](crate::engine)'s.

mod assemble;
mod configure;
mod create;
mod disown;
mod gather;
mod grow;
mod initialise;
mod join;
mod judge;
mod losses;
mod open;
mod overlay;
mod recover;
mod redo;
mod resync;
mod sectors;
mod select;
mod stale;
mod tables;
mod wait;

use uraid_layout::MemberSet;

pub use assemble::Assembled;
pub use configure::{ConfigureError, Setting};
pub use create::{CreateError, CreateOptions, create};
pub use disown::disown;
pub use gather::{Look, look};
pub use grow::GrowError;
pub use initialise::{Content, format};
pub use join::{JoinError, JoinOptions, check, check_all, join, make_spare, rejoin, returning, unmake};
pub use judge::{Candidate, Refusal, SetAside, Verdict, judge};
pub use losses::Loss;
pub use open::{Array, Named, OpenError, OpenOptions, candidates, check_presence};
pub(crate) use overlay::Overlay;
pub use recover::RecoverError;
pub use select::{Ignored, Wanted, select};
pub use stale::{Stale, StaleError};
pub use wait::Patience;

/// Members, and the verb: `member 1 is`, `members 1 and 3 are`.
fn are(members: MemberSet) -> String {
    match members.len() {
        1 => format!("member {members} is"),
        _ => format!("members {members} are"),
    }
}
