//! Calls and requests that bind memory windows, and the causes of their unbinding
//! ([`window`](crate::rnic::memory::window)).

use alloc::{boxed::Box, vec::Vec};

use crate::rnic::{
    Rnic,
    memory::{
        region::{Owner, Region, Regions},
        registration::{Access, Holder, Keys, Registration, User},
        window::{Bind, Binding, PreparedBind, Revocable, Window, WindowType},
    },
    objects::{
        id::{Key, PdId, QpId, RegionId, WindowId},
        lifetime::Life,
    },
    status::VerbError,
};

impl Regions {
    /// Checks a bind by a queue pair of a domain.
    ///
    /// # Errors
    /// As [`Rnic::post_bind`].
    pub(crate) fn check_bind(&self, pd: PdId, bind: Bind) -> Result<(), VerbError> {
        let window = self.windows.get(bind.window).filter(|window| window.pd == pd);
        let window = window.ok_or(VerbError::InvalidHandle)?;
        let region = self.table.get(bind.region).filter(|region| region.pd == pd);
        let region = region.ok_or(VerbError::InvalidHandle)?;
        if window.life.is_closing() || region.life.is_closing() {
            return Err(VerbError::InvalidHandle);
        }
        let is_one = window.kind == WindowType::One;
        let has_rights_of_peers =
            !bind.rights.contains(Access::LOCAL_WRITE) && !bind.rights.contains(Access::BIND);
        if !has_rights_of_peers
            || is_one && bind.key.is_some()
            || !is_one && bind.length == 0
            || bind.base.checked_add(bind.length).is_none()
        {
            return Err(VerbError::InvalidArgument);
        }
        // The registration of an earlier request is checked when the bind starts.
        if let Some(registration) = region.registration.as_ref().filter(|_| bind.length > 0) {
            bind.check(registration)?;
        }
        Ok(())
    }

    /// Checks a bind, and assigns the window its next token.
    ///
    /// # Errors
    /// As [`Rnic::post_bind`].
    pub(crate) fn prepare_bind(&mut self, pd: PdId, bind: Bind) -> Result<PreparedBind, VerbError> {
        self.check_bind(pd, bind)?;
        let Self { windows, random, .. } = self;
        let window = windows.get_mut(bind.window).ok_or(VerbError::InvalidHandle)?;
        let last = window.token as u8;
        let key = bind.key.unwrap_or_else(|| window.keys.next(Some(last), random));
        window.token = window.token & !0xff | u32::from(key);
        Ok(PreparedBind { bind, token: window.token })
    }

    /// Executes a bind. Returns true on success.
    pub(crate) fn bind(&mut self, user: User, prepared: PreparedBind) -> bool {
        let PreparedBind { bind, token } = prepared;
        let Some(window) = self.windows.get(bind.window) else { return false };
        let holder = match window.kind {
            WindowType::One => Holder::Peers(window.pd),
            WindowType::Two if window.binding.is_some() => return false,
            WindowType::Two => Holder::Peer(user.qp),
        };
        if window.life.is_closing() {
            return false;
        }
        if bind.length == 0 {
            self.unbind(bind.window);
            return true;
        }
        let is_open = |region: &&mut Region| !region.life.is_closing();
        let Some(region) = self.table.get_mut(bind.region).filter(is_open) else { return false };
        let checked = region.registration.as_ref().and_then(|it| bind.check(it).ok());
        let Some(memory) = checked else { return false };
        region.windows += 1;
        self.unbind(bind.window);
        let Bind { window, region, base, rights, .. } = bind;
        let registration = Registration { token, memory, base, rights, lams: Box::default() };
        if let Some(window) = self.windows.get_mut(window) {
            window.binding = Some(Binding { region, holder, registration });
        }
        true
    }

    /// Checks the target of an invalidation by a queue pair of a domain.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`].
    pub(crate) fn check_revocable(&self, pd: PdId, target: Revocable) -> Result<(), VerbError> {
        let target = match target {
            Revocable::Token(token) => self.owner(token).and_then(Owner::revocable),
            other => Some(other),
        };
        let is_fit = match target {
            Some(Revocable::Region(id)) => {
                self.table.get(id).is_some_and(|mr| mr.pd == pd && mr.is_fast_register)
            }
            Some(Revocable::Window(id)) => self
                .windows
                .get(id)
                .is_some_and(|window| window.pd == pd && window.kind == WindowType::Two),
            Some(Revocable::Token(_)) | None => false,
        };
        if is_fit { Ok(()) } else { Err(VerbError::InvalidHandle) }
    }

    /// Unbinds a window. Returns true if it was bound.
    pub(crate) fn unbind(&mut self, id: WindowId) -> bool {
        let binding = self.windows.get_mut(id).and_then(|window| window.binding.take());
        let Some(Binding { region, .. }) = binding else { return false };
        if let Some(region) = self.table.get_mut(region) {
            debug_assert!(region.windows > 0, "bound windows are counted");
            region.windows = region.windows.saturating_sub(1);
        }
        true
    }

    /// Unbinds the windows that a queue pair has bound.
    pub(crate) fn unbind_all(&mut self, qp: QpId) {
        self.unbind_where(|binding| binding.holder == Holder::Peer(qp));
    }

    /// Unbinds the windows that are bound to a region.
    pub(crate) fn unbind_of_region(&mut self, region: RegionId) {
        if self.table.get(region).is_some_and(|region| region.windows > 0) {
            self.unbind_where(|binding| binding.region == region);
        }
    }

    fn unbind_where(&mut self, matches: impl Fn(&Binding) -> bool) {
        if self.windows.is_empty() {
            return;
        }
        let is_bound = |id: &WindowId| {
            let window = self.windows.get(*id);
            window.and_then(|window| window.binding.as_ref()).is_some_and(&matches)
        };
        let bound: Vec<_> = self.windows.names().filter(is_bound).collect();
        for id in bound {
            self.unbind(id);
        }
    }

    /// Removes a window from its table, and releases its token.
    pub(crate) fn remove_window(&mut self, id: WindowId) -> Option<Window> {
        self.unbind(id);
        let window = self.windows.remove(id)?;
        self.release_token(window.token);
        Some(window)
    }
}

impl Rnic {
    /// Creates a memory window, which is not bound. It has a token from the start; the tokens of its binds differ from
    /// it in the low 8 bits, the key.
    ///
    /// # Errors
    /// [`VerbError::InvalidHandle`]: the domain does not exist or is being closed; [`VerbError::NoResources`].
    pub fn create_window(&mut self, pd: PdId, kind: WindowType) -> Result<WindowId, VerbError> {
        self.check_parent(Key::Pd(pd))?;
        let regions = &mut self.objects.regions;
        let (life, keys) = (Life::default(), Keys::default());
        let window = Window { life, pd, kind, token: 0, keys, binding: None };
        let id = regions.windows.insert(window).map_err(|_| VerbError::NoResources)?;
        let token = regions.draw(Owner::Window(id));
        match (token, regions.windows.get_mut(id)) {
            (Ok(token), Some(window)) => window.token = token,
            _ => {
                regions.windows.remove(id);
                return Err(VerbError::NoResources);
            }
        }
        self.objects.pin(Key::Pd(pd));
        Ok(id)
    }

    /// Token of the last posted bind, or the initial token; for peers. `None`: the window does not exist.
    #[must_use]
    pub fn window_token(&self, id: WindowId) -> Option<u32> {
        self.objects.regions.windows.get(id).map(|window| window.token)
    }
}

#[cfg(test)]
mod tests;
