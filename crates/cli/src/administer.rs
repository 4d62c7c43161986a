//! The commands that ask a server to do something.

use anyhow::Result;
use serde_json::Value;

use crate::args::{ServerArgs, SetArgs};
use crate::control::client::Client;
use crate::control::protocol::Request;
use crate::terminal::print;

/// `uraid stop`: waits until the members are marked clean.
pub(crate) fn stop(args: &ServerArgs) -> Result<()> {
    let mut client = Client::connect(&args.socket)?;
    client.be_patient()?;
    let _: Value = client.ask(&Request::Stop {})?;
    print(format_args!("stopped"))
}

/// `uraid set`.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let mut client = Client::connect(&args.server.socket)?;
    for (key, value) in &args.settings {
        let _: Value = client.ask(&Request::Set { key: key.clone(), value: value.clone() })?;
        print(format_args!("{key}={value}"))?;
    }
    Ok(())
}
