//! How often something happened, in total and in the last whole minute.

/// The counts of a server, in the order of INFO: requests by kind, then bytes; then the counts that INFO does not
/// contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Tally {
    Requests,
    Insert,
    Query,
    Update,
    Purge,
    Get,
    Set,
    List,
    Info,
    Stats,
    Stat,
    Subscribe,
    Unsubscribe,
    Publish,
    Channel,
    Channels,
    WhoAmI,
    Connection,
    Connections,
    ReadBytes,
    WriteBytes,
    Consume,
    ConsumeAll,
    Event,
    Refused,
}

/// Number of counts.
pub(super) const TALLIES: usize = 25;

/// Requests by their names in metrics.
pub(super) const KINDS: [(&str, Tally); 21] = [
    ("insert", Tally::Insert),
    ("query", Tally::Query),
    ("update", Tally::Update),
    ("purge", Tally::Purge),
    ("get", Tally::Get),
    ("set", Tally::Set),
    ("list", Tally::List),
    ("info", Tally::Info),
    ("stats", Tally::Stats),
    ("stat", Tally::Stat),
    ("subscribe", Tally::Subscribe),
    ("unsubscribe", Tally::Unsubscribe),
    ("publish", Tally::Publish),
    ("channel", Tally::Channel),
    ("channels", Tally::Channels),
    ("whoami", Tally::WhoAmI),
    ("connection", Tally::Connection),
    ("connections", Tally::Connections),
    ("consume", Tally::Consume),
    ("consume-all", Tally::ConsumeAll),
    ("event", Tally::Event),
];

/// Counts since the last flush, to be added at once.
pub(super) type Tallies = [u64; TALLIES];

/// Counts in total, of this minute and of the previous one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Minutes {
    minute: u32,
    total: Tallies,
    current: Tallies,
    last: Tallies,
}

impl Minutes {
    pub(super) const fn new() -> Self {
        Self { minute: 0, total: [0; TALLIES], current: [0; TALLIES], last: [0; TALLIES] }
    }

    fn turn(&mut self, minute: u32) {
        if minute != self.minute {
            let next = minute == self.minute.wrapping_add(1);
            self.last = if next { self.current } else { [0; TALLIES] };
            self.current = [0; TALLIES];
            self.minute = minute;
        }
    }

    pub(super) fn add(&mut self, tallies: &Tallies, minute: u32) {
        self.turn(minute);
        for (index, by) in tallies.iter().enumerate() {
            self.total[index] += by;
            self.current[index] += by;
        }
    }

    /// Counts in total, and in the last whole minute.
    pub(super) fn read(&mut self, minute: u32) -> (&Tallies, &Tallies) {
        self.turn(minute);
        (&self.total, &self.last)
    }
}
