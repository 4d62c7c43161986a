//! What a package has beside the program: completions, manual pages, and a file that describes an array.

mod completions;
mod config;
mod man;
