//! What runs count.

/// Makes a record of counts, which can be added up and listed by name.
macro_rules! counts {
    ($(#[doc = $what:literal])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[doc = $what])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[doc = $doc])* pub $field: u64,)* }

        impl $name {
            /// Both.
            #[must_use]
            pub fn plus(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field,)* }
            }

            /// Each count by its name.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
        }
    };
}

counts! {
    /// What happened in runs.
    Counts {
        /// Events.
        events,
        /// Times that the array was opened.
        lives,
        /// Of these, how often it had to be recovered, and was.
        recoveries,
        /// Power cuts, kills and hangs.
        cuts,
        /// Of these, how often before the array was recovered.
        cuts_in_recovery,
        /// Sectors that clients read.
        sectors_read,
        /// Lives without some member.
        degraded,
        /// How often members corrupted something silently.
        lies,
        /// Commands that rightly failed where too many members had.
        unreadable,
        /// Pieces that were computed from other members and written back.
        repaired,
        /// Arrays, not stopped cleanly, that were read without being written first.
        only_read,
        /// Runs of arrays with several regions of a write-intent bitmap.
        several_regions,
        /// Runs of new arrays, of which regions are blank.
        new,
        /// Operations that never ended, or took half a minute, in lives with deadlines.
        hangs,
        /// Operations that were given up after a deadline.
        overdue,
    }
}

counts! {
    /// What was done to running arrays.
    Changes {
        /// Members given up.
        fails,
        /// New members taken in.
        joins,
        /// Members that came back.
        returns,
        /// Of these, how many lacked only what the bitmap says.
        shorts,
        /// Lives in which a member that had joined got all of its content.
        rebuilds,
        /// Scrubs that came to their end.
        scrubs,
        /// Copies of members to others that were begun.
        copies,
        /// Of these, how many took the member's place when they were whole.
        replaced,
        /// Of these, how many took the member's place as that had failed.
        promoted,
    }
}

counts! {
    /// What was done to stopped arrays.
    Alterations {
        /// Arrays that grew.
        grown,
        /// Arrays that got another shape.
        reshaped,
        /// Arrays that were on their way to one, and went back.
        turned_back,
        /// Arrays that were rightly left as they were.
        left_alone,
        /// How often a change was gone on with after the power went, or members failed.
        resumed,
        /// Members that failed, or were left out, meanwhile.
        given_up,
        /// Members that joined so.
        joined,
        /// Members that left.
        left,
    }
}

counts! {
    /// What was done to the shape of arrays while they were served.
    Served {
        /// Reshapes that were begun.
        begun,
        /// Of these, how many without a stop.
        begun_running,
        /// How often it was cut off that one began without a stop, whether it is on record then or not.
        begun_cut_off,
        /// How often the array was rightly as it was after an attempt to begin one without a stop.
        not_begun,
        /// Arrays that were rightly left as they were.
        left_alone,
        /// Windows that moved.
        windows,
        /// Of these, how many while clients waited for something.
        windows_under_load,
        /// How often one was turned round.
        turns,
        /// Reshapes that were ended.
        ended,
        /// Of these, how many went back.
        ended_back,
        /// Lives of arrays between two shapes.
        lives,
        /// Arrays that grew.
        grown,
    }
}

counts! {
    /// What has rotted between lives, of what is not content.
    Rotten {
        /// Copies of superblocks.
        superblocks,
        /// Blocks of write-intent bitmaps.
        bitmaps,
        /// Sectors of logs.
        logs,
        /// Times that blocks of data became unreadable.
        blocks,
        /// Members that were refused, and left out, as their logs had lost something.
        refused,
    }
}

counts! {
    /// What became of log devices.
    Logged {
        /// Times that an array got log devices, or others.
        exchanged,
        /// Times that its log was on its members again.
        taken_out,
        /// How often that was cut off.
        cut_off,
        /// Lives of arrays with log devices.
        lives,
        /// Of these, how many without some of them.
        missing,
        /// Places of their rings that rotted, or could not be read any more.
        rotten,
        /// Log devices that failed, and were given up.
        given_up,
        /// Arrays that were rightly refused: without any log device, with another array's, or with a copy.
        refused,
    }
}

/// What runs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A number that two runs have in common when the same happened in both.
    pub hash: u64,
    /// What happened.
    pub counts: Counts,
    /// What was done to arrays that ran.
    pub changes: Changes,
    /// What was done to arrays that were stopped.
    pub alterations: Alterations,
    /// What was done to the shape of arrays that ran.
    pub served: Served,
    /// Bits that rotted.
    pub rotten: Rotten,
    /// What became of log devices.
    pub logged: Logged,
}

impl Report {
    /// Two reports as one; the hash is nobody's then.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            hash: 0,
            counts: self.counts.plus(other.counts),
            changes: self.changes.plus(other.changes),
            alterations: self.alterations.plus(other.alterations),
            served: self.served.plus(other.served),
            rotten: self.rotten.plus(other.rotten),
            logged: self.logged.plus(other.logged),
        }
    }

    /// Every count by its name; those of what rotted begin with `rotten_`, those of stopped arrays with `stopped_`,
    /// those of the shape of running ones with `served_`, and those of log devices with `logged_`.
    #[must_use]
    pub fn named(&self) -> Vec<(String, u64)> {
        let plain = self.counts.named().into_iter().chain(self.changes.named());
        let plain = plain.map(|(name, count)| (name.to_owned(), count));
        let rotten = self.rotten.named().into_iter().map(|(name, count)| (format!("rotten_{name}"), count));
        let stopped = self.alterations.named().into_iter().map(|(name, count)| (format!("stopped_{name}"), count));
        let served = self.served.named().into_iter().map(|(name, count)| (format!("served_{name}"), count));
        let logged = self.logged.named().into_iter().map(|(name, count)| (format!("logged_{name}"), count));
        plain.chain(rotten).chain(stopped).chain(served).chain(logged).collect()
    }
}
