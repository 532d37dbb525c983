"""NVFLARE: processes, certificates and connections come from it, questions and answers are ours."""
