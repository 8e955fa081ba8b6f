//! A sorted set which mostly has one element: that one is kept beside the tree, so no memory is taken and given back for it.

use std::collections::BTreeSet;
use std::mem;

/// A sorted set that mostly has one element.
#[derive(Debug)]
pub(super) struct Order<T> {
    /// Any one element of the set, not necessarily the first; `None` only if the tree has none either, or since an element was removed.
    beside: Option<T>,
    tree: BTreeSet<T>,
}

impl<T: Copy + Ord> Order<T> {
    pub fn new() -> Self {
        Self { beside: None, tree: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.tree.len() + usize::from(self.beside.is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.beside.is_none() && self.tree.is_empty()
    }

    /// Adds an element that is not in the set.
    pub fn insert(&mut self, element: T) {
        if self.beside.is_none() {
            self.beside = Some(element);
        } else {
            self.tree.insert(element);
        }
    }

    /// Removes an element, if it is in the set.
    pub fn remove(&mut self, element: &T) {
        if self.beside.as_ref() == Some(element) {
            self.beside = None;
        } else {
            self.tree.remove(element);
        }
    }

    pub fn first(&self) -> Option<T> {
        let first = self.tree.first().copied();
        match (first, self.beside) {
            (Some(first), Some(beside)) => Some(first.min(beside)),
            (first, beside) => first.or(beside),
        }
    }

    pub fn last(&self) -> Option<T> {
        let last = self.tree.last().copied();
        match (last, self.beside) {
            (Some(last), Some(beside)) => Some(last.max(beside)),
            (last, beside) => last.or(beside),
        }
    }

    /// The elements, the least one first.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        let mut tree = self.tree.iter().copied().peekable();
        let mut beside = self.beside;
        std::iter::from_fn(move || {
            let comes_first = beside.is_some_and(|beside| tree.peek().is_none_or(|next| beside < *next));
            if comes_first { beside.take() } else { tree.next() }
        })
    }

    /// Takes all elements out, and returns them in order.
    pub fn take_all(&mut self) -> Vec<T> {
        let all = self.iter().collect();
        drop(mem::replace(self, Self::new()));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_order_is_a_sorted_set(steps in prop::collection::vec((any::<bool>(), 0..20_u8), 0..100)) {
            let (mut order, mut model) = (Order::new(), BTreeSet::new());
            for (inserts, element) in steps {
                if !inserts {
                    order.remove(&element);
                    model.remove(&element);
                } else if model.insert(element) {
                    order.insert(element);
                }
                prop_assert_eq!(order.len(), model.len());
                prop_assert_eq!(order.is_empty(), model.is_empty());
                prop_assert_eq!(order.first(), model.first().copied());
                prop_assert_eq!(order.last(), model.last().copied());
                prop_assert!(order.iter().eq(model.iter().copied()));
            }
            prop_assert!(order.take_all().into_iter().eq(model));
            prop_assert!(order.is_empty());
        }
    }
}
