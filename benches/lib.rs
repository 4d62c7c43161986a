//! Criterion benchmarks live in the files beside this one; see each `[[bench]]`.
