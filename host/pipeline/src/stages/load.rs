//! Puts what was said before in front of what is asked, so that every guard sees what the model will.

use crate::chat::Pipeline;
use crate::states::{Admitted, Loaded};
use std::sync::Arc;
use tidegate_types::Reject;

impl Pipeline {
    pub(crate) async fn load(&self, admitted: Admitted) -> Result<Loaded, Reject> {
        let Admitted(mut request) = admitted;
        let Some(history) = request.cx.history.take() else { return Ok(Loaded(request)) };
        let asked = std::mem::take(&mut Arc::make_mut(&mut request.chat).messages);
        let transcript = (history.0)(asked).await?;
        Arc::make_mut(&mut request.chat).messages = transcript.messages;
        request.left_out = transcript.left_out;
        request.may_shorten = transcript.may_shorten;
        request.summary = transcript.summary;
        Ok(Loaded(request))
    }
}
