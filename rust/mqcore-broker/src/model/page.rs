//! Pages of lists: long lists are read in several steps, so that no step takes long.
//!
//! Entries have a key that does not change, and lists are in ascending order of their keys. An entry that exists from the
//! first page to the last is therefore listed exactly once, whatever is added and removed meanwhile.

/// Maximum entries that one step considers, and so the maximum items of a page.
pub const PAGE_ENTRIES_MAX: usize = 1_000;

/// The part of a list to return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The cursor of the page before; `None`: begin with the first entry.
    pub after: Option<Box<str>>,
    /// Maximum items, at least 1. Default and maximum: [`PAGE_ENTRIES_MAX`].
    pub max: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { after: None, max: PAGE_ENTRIES_MAX }
    }
}

/// One page of a list.
///
/// ```
/// use mqcore_broker::model::page::ListPage;
///
/// let mut page = ListPage { items: vec!["b", "d"], next: Some("d".into()) };
/// page.merge(ListPage { items: vec!["a", "c", "f"], next: None });
/// page.cut(2, |item| item);
/// assert_eq!((page.items, page.next.as_deref()), (vec!["a", "b"], Some("b")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// The items. A page may have fewer than asked for, even none, although there are more.
    pub items: Vec<T>,
    /// The cursor of the next page: the key of the last entry that was considered. `None`: there is nothing more.
    pub next: Option<Box<str>>,
}

/// The whole list on one page.
impl<T> From<Vec<T>> for ListPage<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

impl<T> ListPage<T> {
    /// Adds another shard's part of the same page.
    pub fn merge(&mut self, other: Self) {
        self.items.extend(other.items);
        self.next = self.next.take().into_iter().chain(other.next).min();
    }

    /// Sorts a merged page by key, and drops the items that belong to later pages: those behind the first cursor of a
    /// shard, and those above `max`.
    pub fn cut(&mut self, max: usize, key: impl Fn(&T) -> &str) {
        self.items.sort_by(|one, other| key(one).cmp(key(other)));
        if let Some(next) = &self.next {
            let end = self.items.partition_point(|item| key(item) <= &**next);
            self.items.truncate(end);
        }
        if self.items.len() > max {
            self.items.truncate(max);
            self.next = self.items.last().map(|item| key(item).into());
        }
    }
}

impl Page {
    /// Takes the page from `entries`, which begin behind the cursor and are in ascending order of their keys. `item`
    /// returns `None` for an entry that a filter rejects.
    pub(crate) fn take<E, T>(
        &self,
        mut entries: impl Iterator<Item = E>,
        key: impl FnOnce(&E) -> Box<str>,
        item: impl Fn(&E) -> Option<T>,
    ) -> ListPage<T> {
        let (mut items, mut last) = (Vec::new(), None);
        for entry in entries.by_ref().take(PAGE_ENTRIES_MAX) {
            items.extend(item(&entry));
            last = Some(entry);
            if items.len() >= self.max {
                break;
            }
        }
        let next = entries.next().and(last);
        ListPage { items, next: next.as_ref().map(key) }
    }
}
