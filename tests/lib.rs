//! The harness of the end-to-end tests, which drive the real `uraid` binary with clients that others wrote.
//!
//! - [`process`]: a program with bounded time and captured output, for benchmarks and virtual machines too; [`run`]:
//!   those that others wrote; [`binary`]: the program under test.
//! - [`shape`]: every kind of array that is tested, with what the test expects of it; [`placement`]: where its blocks
//!   lie, written from the published formulas. Neither knows the crates under test.
//! - [`mod@array`]: members in a temporary directory; [`server`]: `uraid serve`, stopped or killed when dropped.
//! - [`certificates`]: authorities, and directories with the certificates of servers and clients.
//! - [`nbd`]: a plain client for what no foreign client can be made to send; [`image`]: contents to write and compare.
//! - [`shadow`]: clients on several connections, beside a model of what the export must hold.
//! - [`kills`]: servers killed under load, again and again, with a client that knows what must have survived.
//!
//! Nothing sleeps to wait for something: a server is ready when it prints its URI, a program has ended when the kernel
//! says so, and both have a deadline. Every failure panics with the command and its output.

pub mod array;
pub mod binary;
pub mod certificates;
pub mod console;
pub mod image;
pub mod kills;
pub mod nbd;
pub mod placement;
pub mod process;
pub mod run;
pub mod server;
pub mod shadow;
pub mod shape;

/// Defines one `#[test]` per array shape, which calls `$check(&Shape)`.
#[macro_export]
macro_rules! for_every_shape {
    ($check:path) => {
        $crate::for_shapes!($check:
            raid0_of_4, raid1_of_2, raid1_of_3, raid10_of_4, raid10_of_5, raid10_of_5_with_3_copies, raid5_of_3,
            raid5_of_5_left_symmetric, raid5_of_5_left_asymmetric, raid5_of_5_right_symmetric,
            raid5_of_5_right_asymmetric, raid6_of_4, raid6_of_6_right_asymmetric, rm2_of_7_adjacent,
            rm2_of_7_partitioned, rm2_of_6);
    };
}

/// Defines one `#[test]` for each named shape, which calls `$check(&Shape)`.
#[macro_export]
macro_rules! for_shapes {
    ($check:path: $($shape:ident),+) => {
        $(
            #[test]
            fn $shape() {
                $check(&$crate::shape::$shape());
            }
        )+
    };
}
