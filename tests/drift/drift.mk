# Our declarations against NVIDIA's headers. CUDA_INCLUDE=folder names the only place to look in.

drift: ## Compare our CUDA and NVML declarations with the real headers, where there are any
	$(Q)CUDA_INCLUDE='$(CUDA_INCLUDE)' tests/drift/drift '$(CC)'

.PHONY: drift
