//! Adapters that make other engines (vLLM, SGLang, llama.cpp) speak the ports of the core. There is none yet.
