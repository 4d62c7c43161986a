//! Certificates that are read anew with the file: servers that go on use what was read last.

use uraid_nbd::Tls;

use super::plan::Plans;

/// How the server and its arrays do TLS, each way once.
#[derive(Debug, Default)]
pub(super) struct Certificates(Vec<Tls>);

impl Certificates {
    /// Has those who do TLS in the same way as in `plans` use the certificates that these have read, and `plans` share
    /// it with them.
    pub(super) fn renew(&mut self, plans: &mut Plans) {
        let arrays = plans.arrays.iter_mut().map(|plan| &mut plan.prepared.tls);
        for tls in [&mut plans.server.tls].into_iter().chain(arrays).flatten() {
            match self.0.iter().find(|known| known.renew(tls)) {
                Some(known) => *tls = known.clone(),
                None => self.0.push(tls.clone()),
            }
        }
    }
}
