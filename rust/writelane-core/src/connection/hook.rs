//! What an application asks to be told of.

use super::{Connection, Error};
use crate::sqlite::{Action, Authorizer, Progress, Trace, Traced};

// The old one goes before the new one comes: its end takes whatever is installed off the handle.

impl Connection {
    /// Have `callback` asked about every action of the statements prepared from now on; `None`: nobody.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Inherited`].
    pub fn set_authorizer(
        &self,
        callback: Option<impl Fn(&Action<'_>) -> i32 + Send + Sync + 'static>,
    ) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        let former = state.hooks.borrow_mut().authorizer.take();
        drop(former);
        // What was prepared under the old one is not run under the new one.
        state.cache.borrow_mut().clear();
        state.hooks.borrow_mut().authorizer = callback.map(|callback| Authorizer::install_raw(&handle, callback));
        Ok(())
    }

    /// Have `callback` told of every statement that begins to run; `None`: nobody.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Inherited`].
    pub fn set_trace(&self, callback: Option<impl Fn(&Traced<'_>) + Send + Sync + 'static>) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        let former = state.hooks.borrow_mut().trace.take();
        drop(former);
        state.hooks.borrow_mut().trace = callback.map(|callback| Trace::install(&handle, callback));
        Ok(())
    }

    /// Have `callback` asked every `instructions` steps of a statement whether to end it; `None`: nobody.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Inherited`].
    pub fn set_progress(
        &self,
        instructions: i32,
        callback: Option<impl Fn() -> bool + Send + Sync + 'static>,
    ) -> Result<(), Error> {
        let (state, handle) = self.enter()?;
        let former = state.hooks.borrow_mut().progress.take();
        drop(former);
        state.hooks.borrow_mut().progress = match callback {
            Some(callback) if instructions > 0 => Some(Progress::install(&handle, instructions, callback)),
            _ => None,
        };
        Ok(())
    }
}
