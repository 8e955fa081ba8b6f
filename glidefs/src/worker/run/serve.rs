//! The way of a request: from the tag through the waiting places to the cache, and back.
//!
//! A request which can be served at once passes through [`Loop::serve`] and [`Loop::finish`] without an allocation, unless its data is
//! taken in pieces. Each step carries the request on, or leaves the request in one waiting place; a `resume_…` function makes the
//! requests ready whose wait has ended. The turn then takes requests out of [`Ready`](crate::worker::waits::ready::Ready), which bounds
//! the turn.

use std::io;

use super::Loop;
use crate::cache::{IoError, Reservation};
use crate::export::Operation;
use crate::observe::trace::Part;
use crate::tasks::{self, WorkFor};
use crate::units::PIECE_BYTES;
use crate::worker::driver::Failure;
use crate::worker::engine::Engine;
use crate::worker::requests::{Errand, InFlight, RequestBuffer, TagRequest};
use crate::worker::tag::TagId;
use crate::worker::traces;
use crate::worker::waits::divided::{Divided, copy_in};
use crate::worker::waits::held::Released;
use crate::worker::waits::log_line::Left;
use crate::worker::waits::ready::Stage;
use crate::worker::waits::stop;
use crate::worker::waits::tasks::Waited;

impl Loop {
    /// The worker works for the export behind a tag until the result is dropped.
    #[inline]
    fn work_for(&self, tag: TagId) -> WorkFor {
        tasks::work_for(Some(self.queues.export(tag).id()))
    }

    /// Begins with the end of a queue's command.
    pub(super) fn command_ended(&mut self, token: u64, result: i32) -> io::Result<()> {
        let requesting = self.queues.ended(&self.ring, token, result)?;
        requesting.map_or(Ok(()), |tag| self.arrive(tag))
    }

    /// Takes the request which a tag holds.
    fn arrive(&mut self, tag: TagId) -> io::Result<()> {
        let _work = self.work_for(tag);
        match self.queues.take_request(tag, self.now) {
            Ok(request) => {
                traces::begin(tag);
                // Without FLUSHes: two exports with large writes alone would else take these in pieces for nobody.
                if (1..=PIECE_BYTES).contains(&request.data_bytes()) {
                    self.company.note(self.queues.volume(tag).id(), self.now);
                }
                self.ready.add(request, Stage::New);
                Ok(())
            }
            Err(failure) => self.queues.refuse(&mut self.ring, tag, None, &failure),
        }
    }

    /// Takes as many requests as fit in a turn one step further.
    pub(super) fn serve_ready(&mut self) -> io::Result<()> {
        self.ready.begin_turn(&self.queues, self.shard.has_rest());
        while let Some((request, stage)) = self.ready.next() {
            let _work = self.work_for(request.tag);
            match stage {
                Stage::New => self.serve(request)?,
                Stage::Allowed => self.begin(request)?,
                Stage::Paced => self.enter_log(request)?,
                Stage::Admitted(reservation) => self.admitted(request, reservation)?,
                Stage::Fetched(fill) => self.take_buffer(request, Errand::Read(fill))?,
                Stage::Granted(errand, slot) => self.transfer(request, errand, RequestBuffer::Slot(slot))?,
                Stage::Divided(divided) => self.take_pieces(request, divided)?,
            }
        }
        Ok(())
    }

    /// Starts a request which has just come, unless a limit of the export keeps the request waiting.
    fn serve(&mut self, request: TagRequest) -> io::Result<()> {
        let waits = self.limited.holds_back(&request, self.queues.export(request.tag), self.now);
        if waits {
            traces::enter(request.tag, Part::Limit);
            return Ok(());
        }
        self.begin(request)
    }

    /// Carries on requests which the limits of their exports let go on.
    pub(super) fn resume_limited(&mut self) {
        while let Some(request) = self.limited.next(self.now) {
            self.ready.add(request, Stage::Allowed);
        }
    }

    /// Starts a request within the limits of the export.
    pub(super) fn begin(&mut self, request: TagRequest) -> io::Result<()> {
        match request.operation {
            Operation::Read if self.read_mapped(&request) => self.finish(request.without_buffer(), Ok(())),
            Operation::Read => self.take_buffer(request, Errand::Read(None)),
            Operation::Flush => {
                traces::enter(request.tag, Part::Sync);
                self.shard.flush(self.queues.volume(request.tag), request.without_buffer());
                Ok(())
            }
            Operation::Write | Operation::Discard | Operation::WriteZeroes => {
                let volume = self.queues.volume(request.tag);
                if !stop::may_wait(volume) {
                    return self.write_at_once(request);
                }
                let depth = self.queues.of(request.tag).driver.depth();
                match self.held.enter(request, (volume, depth), self.now) {
                    Some(Released::Goes(request)) => self.enter_log(request),
                    Some(Released::Full(request)) => self.refuse_full(request),
                    None => {
                        traces::enter(request.tag, Part::Brake);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Serves a READ if the content is in mapped segments. A tag's own buffer saves the copy of a slot already.
    fn read_mapped(&mut self, request: &TagRequest) -> bool {
        let Self { queues, shard, .. } = self;
        let TagId { tag, .. } = request.tag;
        let driver = &queues.of(request.tag).driver;
        if driver.stable_buffer(tag).is_some() {
            return false;
        }
        traces::enter(request.tag, Part::Log);
        shard.read_mapped(queues.volume(request.tag), request.range, |parts| {
            traces::enter(request.tag, Part::Copy);
            driver.copy_out(tag, parts)
        })
    }

    /// Makes the held writes ready whose bound lets them go on.
    pub(super) fn resume_held(&mut self) -> io::Result<()> {
        while let Some(released) = self.held.next(self.now) {
            match released {
                Released::Goes(request) => self.ready.add(request, Stage::Paced),
                Released::Full(request) => self.refuse_full(request)?,
            }
        }
        Ok(())
    }

    /// Fails a write for which the index of the export has no memory: nothing was promised for the write.
    fn refuse_full(&mut self, request: TagRequest) -> io::Result<()> {
        self.queues.refuse(&mut self.ring, request.tag, Some(&request), &Failure::Full)
    }

    /// Carries on a write which needs log space.
    pub(super) fn enter_log(&mut self, request: TagRequest) -> io::Result<()> {
        let volume = self.queues.volume(request.tag);
        match self.log_line.enter(&mut self.shard, request, volume, self.now) {
            None => {
                traces::enter(request.tag, Part::Brake);
                Ok(())
            }
            Some(Left::Admitted(request, reservation)) => self.admitted(request, reservation),
            Some(Left::Full(request)) => self.finish(request.without_buffer(), Err(Failure::Full)),
            Some(Left::Stopped(request)) => self.fail_waiting(request),
        }
    }

    /// Asks the cache for log space, for one write of the line after the other, until the cache has none.
    pub(super) fn ask_for_log_space(&mut self) -> io::Result<()> {
        while let Some(left) = self.log_line.next(&mut self.shard, self.now) {
            match left {
                Left::Admitted(request, reservation) => {
                    self.ready.add(request, Stage::Admitted(reservation));
                }
                Left::Full(request) => self.finish(request.without_buffer(), Err(Failure::Full))?,
                Left::Stopped(request) => self.fail_waiting(request)?,
            }
        }
        Ok(())
    }

    /// Carries on a WRITE, DISCARD or WRITE_ZEROES which has log space.
    fn admitted(&mut self, request: TagRequest, reservation: Reservation) -> io::Result<()> {
        if request.operation == Operation::Write {
            return self.take_buffer(request, Errand::Write(reservation));
        }
        traces::enter(request.tag, Part::Log);
        let (volume, token) = (self.queues.volume(request.tag), request.without_buffer());
        self.shard.zero(volume, request.range, request.fua, reservation, token);
        Ok(())
    }

    /// Gives a READ or WRITE a buffer, now or when a slot comes free.
    fn take_buffer(&mut self, request: TagRequest, errand: Errand) -> io::Result<()> {
        // The ring must own the memory of an append, and a tag's own buffer belongs to the driver.
        let is_lent = matches!(errand, Errand::Write(_)) && self.engine == Engine::Direct;
        let stable = self.queues.of(request.tag).driver.stable_buffer(request.tag.tag);
        if let Some(stable) = stable.filter(|_| !is_lent) {
            return self.transfer(request, errand, RequestBuffer::Stable(stable));
        }
        if let Some(slot) = self.tasks.try_take(request.data_bytes()) {
            return self.transfer(request, errand, RequestBuffer::Slot(slot));
        }
        traces::enter(request.tag, Part::Slot);
        self.tasks.for_slot(request, errand, self.queues.volume(request.tag))
    }

    /// Makes the requests ready whose slot or data has come, and fails those whose waits were ended.
    pub(super) fn resume_waited(&mut self) -> io::Result<()> {
        while let Some(waited) = self.tasks.next() {
            match waited {
                Waited::Slot(request, errand, Some(slot)) => {
                    self.ready.add(request, Stage::Granted(errand, slot));
                }
                Waited::Slot(request, errand, None) => {
                    if let Errand::Write(reservation) = errand {
                        self.shard.cancel(reservation);
                    }
                    self.fail_waiting(request)?;
                }
                Waited::Store(request, Ok(fill)) => self.ready.add(request, Stage::Fetched(Some(fill))),
                Waited::Store(request, Err(error)) => {
                    self.finish(request.without_buffer(), Err(Failure::Cache(error)))?;
                }
            }
        }
        Ok(())
    }

    /// Hands a READ or WRITE with its buffer to the cache.
    fn transfer(&mut self, request: TagRequest, errand: Errand, mut buffer: RequestBuffer) -> io::Result<()> {
        let volume = self.queues.volume(request.tag);
        match errand {
            Errand::Read(fill) => {
                traces::enter(request.tag, Part::Log);
                self.shard.read(volume, request.range, fill.as_ref(), InFlight { request, buffer });
            }
            Errand::Write(reservation) => {
                let is_large = request.data_bytes() > PIECE_BYTES;
                if is_large && self.company.is_here(volume.id(), self.now) && self.ready.may_divide() {
                    return self.take_pieces(request, Divided::new(reservation, buffer));
                }
                traces::enter(request.tag, Part::Copy);
                if let Err(error) = copy_in(&self.queues, &request, &mut buffer, 0, request.data_bytes()) {
                    return self.copy_failed(request, reservation, error);
                }
                traces::enter(request.tag, Part::Log);
                let token = InFlight { request, buffer };
                self.shard.write(volume, request.range, request.fua, reservation, token);
            }
        }
        Ok(())
    }

    /// Takes the data of a WRITE, and hands the WRITE to the cache. Stops after a piece when completions have come: requests of other
    /// exports may be among these.
    fn take_pieces(&mut self, request: TagRequest, mut divided: Divided) -> io::Result<()> {
        traces::enter(request.tag, Part::Copy);
        loop {
            match divided.take_piece(&self.queues, &request) {
                Err(error) => return self.copy_failed(request, divided.reservation, error),
                Ok(true) => break,
                Ok(false) if self.ring.has_news() => {
                    self.ready.divide(&self.queues, request, divided);
                    return Ok(());
                }
                Ok(false) => {}
            }
        }
        traces::enter(request.tag, Part::Log);
        self.shard.write_in_pieces(true);
        let Divided { reservation, buffer, sums, .. } = divided;
        let (volume, token) = (self.queues.volume(request.tag), InFlight { request, buffer });
        self.shard.write_summed(volume, request.range, request.fua, reservation, (token, Some(sums)));
        Ok(())
    }

    /// Fails a WRITE whose data could not be had.
    fn copy_failed(
        &mut self,
        request: TagRequest,
        reservation: Reservation,
        error: io::Error,
    ) -> io::Result<()> {
        self.shard.cancel(reservation);
        self.finish(request.without_buffer(), Err(Failure::Copy(error)))
    }

    /// Gives the results which are there to the kernel before the worker serves a full turn of requests: the clients do not wait for
    /// the turn.
    pub(super) fn answer_first(&mut self) -> io::Result<()> {
        self.finish_completed()?;
        if !self.advanced {
            return Ok(());
        }
        self.ring.submit()
    }

    /// Gives the results of the turn to the kernel. A READ which needs the store drops its slot and waits for the data.
    pub(super) fn finish_completed(&mut self) -> io::Result<()> {
        let mut done = std::mem::take(&mut self.done);
        done.extend(self.shard.completed());
        self.advanced |= !done.is_empty();
        for (token, result) in done.drain(..) {
            let _work = self.work_for(token.request.tag);
            match result {
                Err(IoError::Remote) => {
                    let request = token.request;
                    drop(token);
                    traces::enter(request.tag, Part::Store);
                    if !self.tasks.for_store(request, self.queues.volume(request.tag)) {
                        self.ready.add(request, Stage::Fetched(None));
                    }
                }
                // What the volume let go on needs a record all the same: other writes came between.
                Err(IoError::IndexFull) => {
                    let mut request = token.request;
                    drop(token);
                    if let Some(kept) = request.kept.take() {
                        self.queues.volume(request.tag).give_back(kept);
                    }
                    // In the next turn: nothing wakes the worker for a request which goes to the cache after the cache's turn.
                    self.ready.add(request, Stage::Allowed);
                }
                result => self.finish(token, result.map_err(Failure::Cache))?,
            }
        }
        self.done = done;
        Ok(())
    }

    /// Gives a request's result to the kernel and drops the request's buffer.
    pub(super) fn finish(&mut self, token: InFlight, result: Result<(), Failure>) -> io::Result<()> {
        self.queues.finish(&mut self.ring, token, result)
    }
}
