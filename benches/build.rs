//! Looks for ISA-L, whose parity is measured beside ours where it is installed: sets `cfg(isal)`.

use std::path::Path;

const HEADER: &str = "/usr/include/isa-l.h";
/// Where distributions put the library; `*` stands for one directory.
const LIBRARIES: [&str; 3] = ["/usr/lib/*/libisal.so", "/usr/lib/libisal.so", "/usr/lib64/libisal.so"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(isal)");
    // While the header is absent, cargo looks again at every build: a package installed later is found.
    println!("cargo::rerun-if-changed={HEADER}");
    if Path::new(HEADER).exists() && LIBRARIES.iter().any(|library| exists(library)) {
        println!("cargo::rustc-cfg=isal");
    }
}

fn exists(library: &str) -> bool {
    let Some((parent, name)) = library.split_once("/*/") else { return Path::new(library).exists() };
    std::fs::read_dir(parent).is_ok_and(|entries| entries.flatten().any(|entry| entry.path().join(name).exists()))
}
