"""Agent Lightning's Python gateway in front of the bench's engine, as its documentation starts it. Usage: ENGINE_PORT PORT"""

import asyncio
import sys

from agentlightning.llm_proxy import LLMProxy
from agentlightning.store import InMemoryLightningStore

engine, port = sys.argv[1], int(sys.argv[2])


async def main():
    model = {"model": "hosted_vllm/fake", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"}
    proxy = LLMProxy(
        port=port,
        host="127.0.0.1",
        model_list=[{"model_name": "fake", "litellm_params": model}],
        store=InMemoryLightningStore(thread_safe=True),
        launch_mode="thread",
    )
    await proxy.start()
    await asyncio.Event().wait()


asyncio.run(main())
