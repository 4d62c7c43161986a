//! What callers want back with the replies to their commands, while the engine knows them by tickets.

use super::replies::Ticket;

/// The callers' tokens, by ticket.
#[derive(Debug)]
pub(super) struct Tokens<T> {
    slots: Vec<Option<T>>,
    free: Vec<Ticket>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Tokens<T> {
    /// Takes a token in, for a ticket.
    pub(super) fn issue(&mut self, token: T) -> Ticket {
        if let Some(ticket) = self.free.pop() {
            self.slots[ticket.index()] = Some(token);
            return ticket;
        }
        self.slots.push(Some(token));
        Ticket(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 commands at once"))
    }

    /// Gives a ticket's token back.
    pub(super) fn redeem(&mut self, ticket: Ticket) -> T {
        self.free.push(ticket);
        self.slots[ticket.index()].take().expect("a command has one reply")
    }
}
