#!/bin/sh
# Make the Secrets of secrets.example.yaml: random ones, and the object store's credentials from this shell's AWS_*
# variables, if they are set. One that exists is left alone. No secret is printed or written to a file.
set -eu
namespace=rails-ray

create() {
  if kubectl -n "$namespace" get secret "$1" >/dev/null 2>&1; then
    echo "secret/$1 is there already"
  else
    # From standard input: what is on a command line is to be seen in the list of processes.
    kubectl -n "$namespace" create secret generic "$1" --from-env-file=/dev/stdin
  fi
}

for secret in rails-ray-auth:auth_token rails-ray-redis:password rails-ray-client:key; do
  echo "${secret#*:}=$(openssl rand -hex 32)" | create "${secret%%:*}"
done
# Routers have the hash of the client's key, not the key.
key=$(kubectl -n "$namespace" get secret rails-ray-client -o 'jsonpath={.data.key}' | base64 -d)
if [ ${#key} -lt 16 ]; then
  echo "secret/rails-ray-client must have a key of at least 16 characters, got ${#key}: delete it, and run this again" >&2
  exit 1
fi
line=sha256:$(printf %s "$key" | openssl dgst -sha256 -r | cut -d ' ' -f 1)
echo "keys=$line" | create rails-ray-api-keys
if ! kubectl -n "$namespace" get secret rails-ray-api-keys -o 'jsonpath={.data.keys}' | base64 -d | grep -q "$line"; then
  echo "secret/rails-ray-api-keys must have the key of secret/rails-ray-client, got others: add the line $line" >&2
  exit 1
fi
if [ -n "${AWS_ACCESS_KEY_ID:-}" ]; then
  env | grep -E '^AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|ENDPOINT_URL)=' | create rails-ray-storage
else
  echo "no AWS_ACCESS_KEY_ID: the accounts rails-ray-batch and rails-ray-serving need a workload identity"
fi
