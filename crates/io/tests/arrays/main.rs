//! Arrays of real files: made, opened, changed while they are stopped, and joined.

mod array;
mod configure;
mod join;
mod support;
