//! What a server has given up: whatever it is refused for that reason gets an explanation.

use std::io;

use anyhow::Error;
use rustix::process::geteuid;

use crate::protocol::Sandbox;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    /// The user that the server became when it had started.
    pub user: Option<String>,
    /// The user that it was started as.
    pub started_as: String,
    /// What the kernel refuses to it.
    pub sandbox: Sandbox,
}

impl Confinement {
    /// Adds to an error what may be behind it, if the system has refused something.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        // Until it has started, it is still root.
        let user = self.user.as_ref().filter(|_| !geteuid().is_root() && is_refusal(&error));
        match user {
            Some(user) => self.explain_paths(error).context(runs_as(user)),
            None => self.explain_paths(error),
        }
    }

    /// The same as far as it is about paths.
    pub(crate) fn explain_paths(&self, error: Error) -> Error {
        if !self.sandbox.paths || !is_refusal(&error) {
            return error;
        }
        error.context(
            "the server's sandbox has the paths that it was started with: restart it with --allow-path DIR to add \
             another directory",
        )
    }

    /// The user that the server runs as.
    pub(crate) fn user(&self) -> &str {
        self.user.as_ref().unwrap_or(&self.started_as)
    }
}

/// Whether the system has refused something.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let is_refusal = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    error.chain().filter_map(|cause| cause.downcast_ref()).any(is_refusal)
}

fn runs_as(user: &str) -> String {
    format!("the server runs as {user}: let {user} read and write what it needs")
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;
    use crate::text::chain;

    #[test]
    fn a_refusal_is_explained_by_what_was_given_up() {
        let confinement = |user: Option<&str>, paths| Confinement {
            user: user.map(str::to_owned),
            started_as: "root".into(),
            sandbox: Sandbox { paths, calls: paths },
        };
        let error = |kind| Err::<(), _>(io::Error::from(kind)).context("/srv/d3: can't open it").unwrap_err();
        let [refused, missing] = [io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound];
        let sandboxed = chain(&confinement(None, true).explain(error(refused)));
        assert!(sandboxed.contains("--allow-path"), "{sandboxed}");
        assert!(sandboxed.ends_with(": /srv/d3: can't open it: permission denied"), "{sandboxed}");
        assert_eq!(chain(&confinement(None, true).explain(error(missing))), chain(&error(missing)));
        assert_eq!(chain(&confinement(None, false).explain(error(refused))), chain(&error(refused)));
    }
}
