//! The memory of requests in flight, of all connections of one server together.
//!
//! A request is charged before memory is allocated for its data, and discharged when its reply is sent. Half of the
//! budget belongs to the connections in equal shares: however much others hold, a small request finds room. The other
//! half is common. A request that does not fit what is left of its connection's share takes all of its bytes from
//! there. A connection that holds common bytes gets more only as long as that is at most half of what is free, so that
//! there is some for whoever comes, however greedy the others are (dynamic thresholds: Choudhury and Hahne, IEEE/ACM
//! Transactions on Networking 6(2), 1998). Connections that hold none come first, in the order in which they asked.
//!
//! Once charged, a request waits for nothing but the export and its own client, so connections never wait in a circle.
//! A client that keeps common bytes, by not taking its replies or not sending the data of its writes, while others wait
//! for them, is found by [`Budget::look`]. A client that nobody waits for may pause as long as it likes.
//!
//! Each of them has patience, which passing time uses up and what it moves restores. It counts from when others began
//! to wait: who gets common bytes for which others have waited long begins with little of it. So a long line of clients
//! that stand still is cleared in little more than the time that one of them has.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    task::Waker,
    time::Duration,
};

use tokio::sync::Notify;

use super::Limits;

/// How often to look within the time that a client may stand still.
const LOOKS: u64 = 60;

/// Looks that a client may stand still however long others have waited: its data may be under way.
const LOOKS_MIN: u64 = 2;

/// Moving this much buys another look; a MiB, all of them.
const LOOK_BYTES: u64 = (1 << 20) / LOOKS;

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    /// Of each connection.
    own_bytes_max: u64,
    common_bytes_max: u64,
    common_bytes: Cell<u64>,
    /// Common or not.
    held_bytes: Cell<u64>,
    all_bytes_max: u64,
    /// Connections that wait for common bytes, in the order in which they asked.
    waiting: RefCell<VecDeque<Rc<Account>>>,
    /// Looks so far.
    looks: Cell<u64>,
    accounts: RefCell<Vec<Rc<Account>>>,
    contended: Notify,
}

/// How much memory requests in flight take, of all connections of one server together.
#[derive(Debug, Clone)]
pub struct RequestMemory(Rc<Budget>);

impl RequestMemory {
    pub(super) fn of(budget: &Rc<Budget>) -> Self {
        Self(Rc::clone(budget))
    }

    /// What they take now.
    pub fn used_bytes(&self) -> u64 {
        self.0.held_bytes.get()
    }

    /// What they may take: see [`Limits::bytes_in_flight_all_max`].
    pub fn limit_bytes(&self) -> u64 {
        self.0.all_bytes_max
    }
}

/// What one connection holds, and how to wake its task.
#[derive(Debug, Default)]
pub(super) struct Account {
    own_bytes: Cell<u64>,
    common_bytes: Cell<u64>,
    /// What it waits for.
    wanted_bytes: Cell<Option<u64>>,
    /// The look before it began to wait.
    waits_since: Cell<u64>,
    task: RefCell<Option<Waker>>,
    /// Whether the connection's task waits: not if it is running or woken, for then it will look for itself.
    parked: Cell<bool>,
    progress: Cell<Progress>,
    /// At the last look, if others waited for what it holds.
    standing: Cell<Option<Standing>>,
    is_evicted: Cell<bool>,
}

/// A request's bytes, until they are discharged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "what is charged is discharged"]
pub(super) enum Charge {
    Own(u64),
    Common(u64),
}

/// How a connection gets on with its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    /// Nothing goes on before the client takes a reply or sends data.
    is_clients_turn: bool,
    /// How often that has ended.
    turns: u64,
    /// Bytes of replies that were taken and of data that were sent.
    moved_bytes: u64,
}

/// A connection that holds what others wait for.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// As far as patience was restored for it.
    progress: Progress,
    /// Looks that it has left.
    patience: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits) -> Rc<Self> {
        let half = limits.bytes_in_flight_all_max / 2;
        Rc::new(Self {
            own_bytes_max: half / (limits.connections_max.max(1) as u64),
            common_bytes_max: half,
            common_bytes: Cell::new(0),
            held_bytes: Cell::new(0),
            all_bytes_max: limits.bytes_in_flight_all_max,
            waiting: RefCell::default(),
            looks: Cell::new(0),
            accounts: RefCell::default(),
            contended: Notify::new(),
        })
    }

    /// An account for a new connection.
    pub(super) fn open(&self) -> Rc<Account> {
        let account = Rc::new(Account::default());
        self.accounts.borrow_mut().push(Rc::clone(&account));
        account
    }

    /// Forgets a connection. What it holds is discharged as its commands end.
    pub(super) fn close(&self, account: &Rc<Account>) {
        self.stop_waiting(account);
        self.accounts.borrow_mut().retain(|other| !Rc::ptr_eq(other, account));
    }

    /// Takes the bytes of a request, or puts the connection in line for them, to be woken when it may ask again.
    ///
    /// A request that is larger than what is common is charged when nobody has any of that.
    pub(super) fn charge(&self, account: &Rc<Account>, bytes: u64) -> Option<Charge> {
        if bytes == 0 || account.own_bytes.get() + bytes <= self.own_bytes_max {
            account.own_bytes.update(|own| own + bytes);
            self.held_bytes.update(|held| held + bytes);
            self.stop_waiting(account);
            return Some(Charge::Own(bytes));
        }
        if self.has_room(account, bytes) {
            self.common_bytes.update(|common| common + bytes);
            self.held_bytes.update(|held| held + bytes);
            account.common_bytes.update(|held| held + bytes);
            self.stop_waiting(account);
            return Some(Charge::Common(bytes));
        }
        if account.wanted_bytes.replace(Some(bytes)).is_none() {
            account.waits_since.set(self.looks.get());
            self.waiting.borrow_mut().push_back(Rc::clone(account));
            self.contended.notify_one();
        }
        None
    }

    /// Whether a connection may have common bytes, and those that wait are not before it.
    fn has_room(&self, account: &Rc<Account>, bytes: u64) -> bool {
        let waiting = self.waiting.borrow();
        first_without(&waiting).is_none_or(|first| Rc::ptr_eq(first, account)) && self.fits(account, bytes)
    }

    fn fits(&self, account: &Account, bytes: u64) -> bool {
        let (common, held) = (self.common_bytes.get(), account.common_bytes.get());
        let free = self.common_bytes_max.saturating_sub(common);
        common == 0 || bytes <= if held == 0 { free } else { (free / 2).saturating_sub(held) }
    }

    pub(super) fn discharge(&self, account: &Account, charge: Charge) {
        let (Charge::Own(bytes) | Charge::Common(bytes)) = charge;
        self.held_bytes.update(|held| held - bytes);
        match charge {
            Charge::Own(bytes) => account.own_bytes.update(|own| own - bytes),
            Charge::Common(bytes) => {
                account.common_bytes.update(|held| held - bytes);
                self.common_bytes.update(|common| common - bytes);
                self.wake_next();
            }
        }
    }

    /// Takes the connection out of the line, if it is in it.
    pub(super) fn stop_waiting(&self, account: &Rc<Account>) {
        if account.wanted_bytes.take().is_some() {
            self.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, account));
            self.wake_next(); // there may be room for two
        }
    }

    fn wake_next(&self) {
        let waiting = self.waiting.borrow();
        let fits = |account: &&Rc<Account>| account.wanted_bytes.get().is_some_and(|bytes| self.fits(account, bytes));
        let next = match first_without(&waiting) {
            Some(first) => Some(first).filter(fits),
            None => waiting.iter().find(fits),
        };
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Looks for clients that are stuck, for ever, while connections wait for common bytes: one that stands still for
    /// `stuck_timeout` is.
    pub(super) async fn watch(&self, stuck_timeout: Duration) {
        loop {
            self.contended.notified().await;
            while self.look() {
                tokio::time::sleep(stuck_timeout / LOOKS as u32).await;
            }
        }
    }

    /// Evicts connections that hold common bytes for which others wait, whose clients are to act, and whose patience is
    /// over. Returns whether anybody waits.
    fn look(&self) -> bool {
        self.looks.update(|looks| looks + 1);
        for account in &*self.accounts.borrow() {
            let longest_wait = Some(account).filter(|account| account.common_bytes.get() > 0);
            let longest_wait = longest_wait.and_then(|account| self.longest_wait_beside(account));
            let now = account.progress.get();
            let standing = longest_wait.map(|looks| Standing::next(account.standing.get(), now, looks));
            account.standing.set(standing);
            if standing.is_some_and(|standing| standing.patience == 0) {
                account.is_evicted.set(true);
                account.wake();
            }
        }
        !self.waiting.borrow().is_empty()
    }

    /// How many looks the first in line has waited, beside this connection; none if nobody waits.
    fn longest_wait_beside(&self, account: &Rc<Account>) -> Option<u64> {
        let waiting = self.waiting.borrow();
        let others = waiting.iter().filter(|waiting| !Rc::ptr_eq(waiting, account));
        others.map(|waiting| self.looks.get() - waiting.waits_since.get()).max()
    }
}

/// The first connection in line that holds no common bytes: it comes before all others.
fn first_without(waiting: &VecDeque<Rc<Account>>) -> Option<&Rc<Account>> {
    waiting.iter().find(|account| account.common_bytes.get() == 0)
}

impl Account {
    /// Notes that the task waits, and whether for its client.
    pub(super) fn park(&self, waker: &Waker, is_clients_turn: bool) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
        let mut progress = self.progress.get();
        if progress.is_clients_turn && !is_clients_turn {
            progress.turns += 1;
        }
        self.progress.set(Progress { is_clients_turn, ..progress });
        self.parked.set(true);
    }

    /// Notes that the task is running.
    pub(super) fn unpark(&self) {
        self.parked.set(false);
    }

    /// Wakes the task if it waits.
    pub(super) fn wake(&self) {
        if self.parked.replace(false)
            && let Some(task) = &*self.task.borrow()
        {
            task.wake_by_ref();
        }
    }

    /// Notes bytes that the client took or sent.
    pub(super) fn moved(&self, bytes: usize) {
        let progress = self.progress.get();
        self.progress.set(Progress { moved_bytes: progress.moved_bytes + bytes as u64, ..progress });
    }

    /// Whether the client was too slow to keep what others wait for.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.get()
    }
}

impl Charge {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Own(bytes) | Self::Common(bytes) => bytes,
        }
    }
}

impl Standing {
    /// At a look, after the one at which it was `last`; none: nobody waited, or it held nothing. Then it has what the
    /// first in line, who waits for so many looks, leaves of the patience.
    fn next(last: Option<Self>, now: Progress, longest_wait: u64) -> Self {
        let Some(last) = last else {
            let patience = (LOOKS + 1).saturating_sub(longest_wait).max(LOOKS_MIN);
            return Self { progress: now, patience };
        };
        if !now.is_same_turn(last.progress) {
            return Self { progress: now, patience: LOOKS };
        }
        let bought = (now.moved_bytes - last.progress.moved_bytes) / LOOK_BYTES;
        let counted_bytes = last.progress.moved_bytes + bought * LOOK_BYTES;
        let patience = (last.patience + bought).saturating_sub(1).min(LOOKS);
        Self { progress: Progress { moved_bytes: counted_bytes, ..now }, patience }
    }
}

impl Progress {
    /// Whether it has been for the client to act ever since.
    fn is_same_turn(self, last: Self) -> bool {
        self.is_clients_turn && last.is_clients_turn && self.turns == last.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    /// Two connections of 16 KiB each, and 32 KiB that are common.
    fn budget() -> Rc<Budget> {
        Budget::new(&Limits { connections_max: 2, bytes_in_flight_all_max: 64 * KIB, ..Limits::default() })
    }

    #[test]
    fn a_small_request_finds_room_whatever_others_hold() {
        let budget = budget();
        let [hog, small] = [budget.open(), budget.open()];
        let held: Vec<_> = std::iter::from_fn(|| budget.charge(&hog, 4 * KIB)).collect();
        assert_eq!(held.len(), (16 + 12) / 4, "its own share, and about a third of what is common");
        assert_eq!(budget.charge(&small, 16 * KIB), Some(Charge::Own(16 * KIB)));
        assert_eq!(budget.charge(&small, 20 * KIB + 1), None);
        assert_eq!(budget.charge(&small, 20 * KIB), Some(Charge::Common(20 * KIB)));
        assert_eq!(budget.charge(&small, 1), None);
    }

    #[test]
    fn however_many_are_greedy_one_who_comes_finds_room() {
        let limits = Limits { connections_max: 8, bytes_in_flight_all_max: 64 * 1024 * KIB, ..Limits::default() };
        let budget = Budget::new(&limits);
        let request = 1024 * KIB;
        for _ in 0..6 {
            let greedy = budget.open();
            let _held: Vec<_> = std::iter::from_fn(|| budget.charge(&greedy, request)).collect();
        }
        let [late, later] = [budget.open(), budget.open()];
        let first: Vec<_> = std::iter::from_fn(|| budget.charge(&late, request)).collect();
        let common = first.iter().filter(|charge| matches!(charge, Charge::Common(_))).count();
        assert!(common > 0, "the others' replies are never taken");
        assert!(budget.charge(&later, 5 * request).is_none(), "there is not so much");
        first.into_iter().for_each(|charge| budget.discharge(&late, charge));
        assert_eq!(budget.charge(&late, 5 * request), None, "it is not its turn");
    }

    #[test]
    fn common_bytes_go_to_those_who_asked_first() {
        let budget = budget();
        let [hog, large, small] = [budget.open(), budget.open(), budget.open()];
        let first = budget.charge(&hog, 20 * KIB).unwrap();
        assert_eq!(budget.charge(&large, 30 * KIB), None);
        assert_eq!(budget.charge(&small, 17 * KIB), None);
        assert_eq!(budget.charge(&hog, 17 * KIB), None, "there were others before");
        budget.discharge(&hog, first);
        assert_eq!(budget.charge(&small, 17 * KIB), None, "it fits, and it is not its turn");
        let second = budget.charge(&large, 30 * KIB).unwrap();
        assert_eq!(budget.charge(&small, 17 * KIB), None);
        budget.discharge(&large, second);
        assert_eq!(budget.charge(&small, 17 * KIB), Some(Charge::Common(17 * KIB)));
        budget.close(&small);
        assert_eq!(budget.charge(&hog, 17 * KIB), None, "what a connection leaves behind is still held");
        budget.discharge(&small, Charge::Common(17 * KIB));
        assert_eq!(budget.charge(&hog, 17 * KIB), Some(Charge::Common(17 * KIB)));
    }

    #[test]
    fn one_who_leaves_makes_way_for_the_next() {
        let budget = budget();
        let [hog, gone, next] = [budget.open(), budget.open(), budget.open()];
        let _held = budget.charge(&hog, 20 * KIB).unwrap();
        assert_eq!(budget.charge(&gone, 32 * KIB), None);
        assert_eq!(budget.charge(&next, 12 * KIB), Some(Charge::Own(12 * KIB)));
        assert_eq!(budget.charge(&next, 10 * KIB), None, "another is before it");
        budget.close(&gone);
        assert_eq!(budget.charge(&next, 10 * KIB), Some(Charge::Common(10 * KIB)));
    }

    #[test]
    fn what_is_larger_than_all_is_charged_alone() {
        let budget = budget();
        let [large, other] = [budget.open(), budget.open()];
        let held = budget.charge(&large, 100 * KIB).unwrap();
        assert_eq!(budget.charge(&other, 17 * KIB), None);
        assert_eq!(budget.charge(&large, 100 * KIB), None);
        budget.discharge(&large, held);
        assert!(budget.charge(&other, 17 * KIB).is_some());
    }

    fn evicted(budget: &Budget, accounts: &[&Rc<Account>]) -> Vec<bool> {
        budget.look();
        accounts.iter().map(|account| account.is_evicted()).collect()
    }

    #[test]
    fn only_who_is_stuck_and_in_the_way_is_evicted() {
        let budget =
            Budget::new(&Limits { connections_max: 8, bytes_in_flight_all_max: 64 * KIB, ..Limits::default() });
        let [stuck, busy, slow, brisk, small] = [(); 5].map(|()| budget.open());
        let waker = Waker::noop();
        for account in [&stuck, &busy, &slow, &brisk] {
            let _held = budget.charge(account, 8 * KIB).unwrap();
            account.park(waker, true);
        }
        small.park(waker, true);
        let _held = budget.charge(&small, KIB).unwrap();
        let all = [&stuck, &busy, &slow, &brisk, &small];
        for _ in 0..2 * LOOKS {
            assert_eq!(evicted(&budget, &all), [false; 5], "nobody waits");
        }
        let waiting = budget.open();
        assert_eq!(budget.charge(&waiting, 8 * KIB), None);
        for _ in 0..LOOKS {
            assert_eq!(evicted(&budget, &all), [false; 5], "from now on");
        }
        busy.park(waker, false); // it is the export's turn
        busy.park(waker, true);
        slow.moved(LOOK_BYTES as usize);
        brisk.moved(1 << 20);
        assert_eq!(evicted(&budget, &all), [true, false, false, false, false]);
        assert_eq!(evicted(&budget, &all), [true, false, true, false, false], "a little buys a little time");
        for _ in 2..LOOKS {
            assert_eq!(evicted(&budget, &all), [true, false, true, false, false]);
        }
        assert_eq!(evicted(&budget, &all), [true, true, true, true, false]);
    }

    /// Clients that stand still follow each other, each with all that is common. One that is slow comes after them, and
    /// another one waits for that.
    #[test]
    fn a_long_line_of_clients_that_stand_still_is_cleared_soon() {
        const STILL: usize = 100;
        let limits = Limits { connections_max: STILL + 2, bytes_in_flight_all_max: 64 * KIB, ..Limits::default() };
        let budget = Budget::new(&limits);
        let line: Vec<_> = (0..STILL + 2).map(|_| budget.open()).collect();
        let mut charges: Vec<Option<Charge>> = vec![None; line.len()];
        let mut look = |moves: bool| {
            for (account, charge) in line.iter().zip(&mut charges) {
                if account.is_evicted() {
                    budget.close(account);
                    charge.take().into_iter().for_each(|charge| budget.discharge(account, charge));
                } else if charge.is_none() {
                    *charge = budget.charge(account, 32 * KIB);
                    charge.iter().for_each(|_| account.park(Waker::noop(), true));
                }
            }
            if moves {
                line[STILL].moved(LOOK_BYTES as usize);
            }
            budget.look();
        };
        for looks in 0..=LOOKS + (STILL as u64 - 1) * (LOOKS_MIN + 1) {
            assert_eq!(line[0].is_evicted(), looks > LOOKS, "the first has all of its time");
            look(true);
        }
        assert!(line[..STILL].iter().all(|account| account.is_evicted()));
        (0..2 * LOOKS).for_each(|_| look(true));
        assert!(line[STILL].common_bytes.get() > 0 && !line[STILL].is_evicted(), "it moves");
        (0..LOOKS_MIN).for_each(|_| look(false));
        assert!(line[STILL].is_evicted(), "and then it doesn't");
    }

    #[test]
    fn one_who_only_keeps_itself_waiting_is_left_alone() {
        let budget = budget();
        let client = budget.open();
        let _held = budget.charge(&client, 30 * KIB).unwrap();
        assert_eq!(budget.charge(&client, 30 * KIB), None);
        client.park(Waker::noop(), true);
        for _ in 0..2 * LOOKS {
            assert_eq!(evicted(&budget, &[&client]), [false]);
        }
    }
}
