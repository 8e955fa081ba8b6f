//! The allocator against the plainest model, and the order in which chunks are taken.

use proptest::prelude::*;

use super::*;

/// The plainest allocator: a flag a page.
struct Model(Vec<bool>);

impl Model {
    fn has_room(&self, class: SizeClass) -> bool {
        self.0.chunks(class.pages() as usize).any(|pages| pages.iter().all(|&free| free))
    }

    fn set(&mut self, chunk: &Chunk, free: bool) {
        let first = chunk.first_page as usize;
        for page in &mut self.0[first..first + chunk.class.pages() as usize] {
            assert_ne!(*page, free, "{chunk:?} overlaps another chunk");
            *page = free;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(SizeClass),
    Give(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::sample::select(SizeClass::ALL.to_vec()).prop_map(Step::Take),
        2 => any::<prop::sample::Index>().prop_map(Step::Give),
    ]
}

fn take_all(buddy: &mut Buddy, class: SizeClass) -> Vec<Chunk> {
    std::iter::from_fn(|| buddy.take(class)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chunk_can_be_had_exactly_when_an_aligned_run_of_free_pages_exists(
        tiles in 1u32..5,
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut buddy = Buddy::new(tiles);
        let mut model = Model(vec![true; (tiles * TILE_PAGES) as usize]);
        let mut taken = Vec::new();
        for step in steps {
            match step {
                Step::Take(class) => {
                    let expected = model.has_room(class);
                    let chunk = buddy.take(class);
                    prop_assert_eq!(chunk.is_some(), expected);
                    if let Some(chunk) = chunk {
                        prop_assert_eq!(chunk.class, class);
                        prop_assert_eq!(chunk.first_page % class.pages(), 0);
                        model.set(&chunk, false);
                        taken.push(chunk);
                    }
                }
                Step::Give(index) if !taken.is_empty() => {
                    let chunk = taken.swap_remove(index.index(taken.len()));
                    model.set(&chunk, true);
                    buddy.give(chunk);
                }
                Step::Give(_) => {}
            }
        }
        for chunk in taken {
            buddy.give(chunk);
        }
        prop_assert_eq!(take_all(&mut buddy, SizeClass::KiB128).len(), tiles as usize);
    }

    #[test]
    fn the_chunk_given_back_last_is_taken_first(steps in prop::collection::vec(step(), 1..100)) {
        let mut buddy = Buddy::new(3);
        let mut taken = Vec::new();
        for step in steps {
            match step {
                Step::Take(class) => taken.extend(buddy.take(class)),
                Step::Give(index) if !taken.is_empty() => {
                    let Chunk { first_page, class } = taken.swap_remove(index.index(taken.len()));
                    buddy.give(Chunk { first_page, class });
                    let again = buddy.take(class).expect("it was just given back");
                    prop_assert_eq!(again.first_page, first_page);
                    buddy.give(again);
                }
                Step::Give(_) => {}
            }
        }
    }
}

#[test]
fn each_class_fills_the_arena_with_its_own_count_and_in_order() {
    for (class, count) in SizeClass::ALL.into_iter().zip([64, 16, 4, 2]) {
        let mut buddy = Buddy::new(2);
        let pages: Vec<u32> = take_all(&mut buddy, class).iter().map(|chunk| chunk.first_page).collect();
        assert_eq!(pages, (0..count).map(|n| n * class.pages()).collect::<Vec<_>>());
    }
}

#[test]
fn chunks_come_back_in_the_reverse_of_the_order_in_which_they_were_given() {
    for class in SizeClass::ALL {
        let mut buddy = Buddy::new(1);
        let taken = take_all(&mut buddy, class);
        let mut pages: Vec<u32> = taken.iter().map(|chunk| chunk.first_page).collect();
        for chunk in taken {
            buddy.give(chunk);
        }
        pages.reverse();
        let again: Vec<u32> = take_all(&mut buddy, class).iter().map(|chunk| chunk.first_page).collect();
        assert_eq!(again, pages);
    }
}

#[test]
fn a_tile_that_is_split_is_used_up_before_another_is_split() {
    let mut buddy = Buddy::new(4);
    for class in [SizeClass::KiB4, SizeClass::KiB16, SizeClass::KiB64, SizeClass::KiB4, SizeClass::KiB16] {
        assert!(buddy.take(class).is_some());
    }
    assert_eq!(take_all(&mut buddy, SizeClass::KiB128).len(), 3);
}

#[test]
fn a_length_gets_the_smallest_class_that_holds_it() {
    for class in SizeClass::ALL {
        assert_eq!(SizeClass::for_len(class.bytes()).ok(), Some(class));
        assert_ne!(SizeClass::for_len(class.bytes() + 1).ok(), Some(class));
    }
    assert_eq!(SizeClass::for_len(1).ok(), Some(SizeClass::KiB4));
    assert!(SizeClass::for_len(0).is_err());
    assert!(SizeClass::for_len(REQUEST_BYTES_MAX + 1).is_err());
    assert!(SizeClass::for_len(usize::MAX).is_err());
}
