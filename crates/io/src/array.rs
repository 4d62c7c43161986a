//! Arrays as a whole: made of members, opened from them, brought back into agreement.
//!
//! [`judge`] decides from superblocks alone; [`Array::open`] reads them from members and refuses what is unsafe;
//! [`Assembled`] brings the members into agreement; [`select`] finds those of one array among others; [`create`] makes
//! new ones, [`format()`] from members that are open, and [`Adoptable`] of members that have the content already;
//! [`configure`] changes how they are kept consistent, [`grow`] how much of their members they use, and [`Reshaping`]
//! gives them another shape; [`join`] and [`rejoin`] have members ready for an array that runs. What clients do with an
//! array is the [`engine`](crate::engine)'s.

mod adopt;
mod assemble;
mod badblocks;
mod bitmap;
mod blocking;
mod columns;
mod configure;
mod create;
mod disown;
mod error;
mod gather;
mod grow;
mod initialise;
mod join;
mod judge;
mod logs;
mod losses;
mod new_logs;
mod older;
mod open;
mod overlay;
mod pages;
mod recover;
mod redo;
pub(crate) mod reshape;
mod resync;
mod sectors;
mod select;
mod stale;
mod tables;
mod wait;

pub use adopt::{AdoptError, Adoptable, Adoption, Former, Place, give_back};
pub use assemble::Assembled;
pub use badblocks::LostList;
pub use configure::{ConfigureError, Setting, configure};
pub use create::{CreateError, CreateOptions, create};
pub use disown::disown;
pub use error::{OpenError, RecoverError};
pub use gather::{Named, Opened, candidates, look};
pub use grow::{GrowError, check_growth, grow, grow_served};
pub use initialise::{Content, format};
pub use join::{JoinError, JoinOptions, check, check_all, join, make_spare, rejoin, returning, unmake};
pub use judge::{Candidate, Refusal, SetAside, Verdict, judge};
pub use logs::OpenedLog;
pub use losses::Loss;
pub use new_logs::{FoundLogs, NewLogError, NewLogs, Shares, make_log};
pub use older::Mark;
pub use open::{Array, OpenOptions, check_presence};
pub(crate) use overlay::Overlay;
pub(crate) use pages::{Pages, Record};
pub use recover::{recover, recovery_bytes};
pub use reshape::{
    Exchange, Found, NewMember, Prepared, Rehearsed, ReshapeError, ReshapePlan, Reshaped, Reshaping, Target, UnderWay,
    Unserved, Work, begin_reshape, begin_served, finish_served, first_and_last, lost_of_saved, open_for_reshape,
    plan_reshape, plan_served, rehearse_moves,
};
pub use sectors::LargeSectors;
pub use select::{Ignored, Look, Wanted, select};
pub use stale::{Stale, StaleError, accept_stale};
pub use wait::Patience;
