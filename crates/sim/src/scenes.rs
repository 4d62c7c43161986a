//! Scenes: what must come of one thing that goes wrong at one place. Chance seldom leads there, or what is promised
//! shows only when one looks for it.

mod array;
mod badblocks;
mod checksums;
mod failures;
mod returning;
mod superblocks;
mod unflushed;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A scene.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// What it shows.
    pub name: &'static str,
    play: fn() -> Result<(), String>,
}

macro_rules! scenes {
    ($($module:ident::$name:ident,)*) => {
        /// All of them.
        pub const ALL: &[Scene] = &[$(Scene { name: stringify!($name), play: $module::$name },)*];

        #[cfg(test)]
        mod tests {
            $(
                #[test]
                fn $name() {
                    super::$module::$name().unwrap_or_else(|wrong| panic!("{wrong}"));
                }
            )*
        }
    };
}

scenes! {
    failures::a_member_from_earlier_lives_is_set_aside,
    failures::members_of_two_copies_are_no_array,
    failures::a_write_that_too_many_members_fail_is_not_acknowledged,
    failures::nothing_is_healed_from_parity_that_may_be_wrong,
    unflushed::content_that_a_failed_flush_left_is_written_again,
    unflushed::a_superblock_that_a_failed_flush_left_is_durable_before_the_next,
    unflushed::a_record_that_a_failed_flush_left_is_durable_before_it_is_done_again,
    unflushed::a_whole_stripe_that_a_failed_flush_left_is_written_again,
    returning::a_member_is_made_anew_unless_it_is_known_what_it_lacks,
    returning::a_member_that_was_being_made_is_made_anew,
    returning::a_member_whose_slot_has_another_is_set_aside,
    returning::two_that_went_on_in_one_slot_are_refused,
    returning::what_is_read_out_of_date_is_in_doubt,
    returning::what_lacks_too_many_members_is_only_read,
    returning::a_member_gets_what_the_log_did_again_without_it,
    checksums::rot_is_found_and_healed,
    checksums::a_member_that_does_not_take_what_heals_it_is_failed,
    checksums::what_is_computed_of_stale_content_is_not_given_out,
    checksums::damaged_checksums_cost_nothing,
    checksums::a_crash_leaves_checksums_that_agree,
    superblocks::a_damaged_copy_of_a_superblock_is_made_good,
    badblocks::a_hole_is_known_wherever_the_power_goes,
    badblocks::a_copy_takes_its_list_along_wherever_the_power_goes,
    badblocks::a_long_list_is_whole_wherever_the_power_goes,
}

impl Scene {
    /// Plays it.
    ///
    /// # Errors
    /// What is wrong with how it ends.
    pub fn run(&self) -> Result<(), String> {
        let caught = catch_unwind(AssertUnwindSafe(self.play));
        caught.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("panicked: {}", text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()))
        })
    }
}
