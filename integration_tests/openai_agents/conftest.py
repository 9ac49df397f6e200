from __future__ import annotations

import agents

# Traces would be sent to OpenAI.
agents.set_tracing_disabled(True)
