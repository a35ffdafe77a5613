#!/usr/bin/env bash
# The service with curl: learn, predict, forget, and check the certificate without asking the service.
# Needs the extra `service`, curl and jq. To use another port than 8080, set PORT.
set -euo pipefail
cd "$(mktemp -d)"
URL=http://127.0.0.1:${PORT:=8080}

neverseen init shop --backbone features:4 --codes 64 --json > about.json
TOKEN=$(neverseen keys add shop app --scope learn --scope predict --scope forget)
neverseen serve shop --port "$PORT" --max-delay 0 &
trap "kill $!" EXIT
until curl --silent --fail "$URL/readyz" > /dev/null; do sleep 0.2; done

ask() { # PATH, options of curl: print the answer
  curl --silent --show-error --fail-with-body "$URL$1" "${@:2}" \
    --header "Authorization: Bearer $TOKEN" --header 'Content-Type: application/json'
}
published() { # ID: wait until predictions come from a model with this change
  until ask "/v1/requests/$1" | jq --exit-status '.request.state == "published"' > /dev/null; do sleep 0.1; done
}

echo "-- learn three samples, and keep their receipts"
ask /v1/samples --data '{"owner": "ada", "samples": [
  {"features": [1, 0, 0, 0.5], "label": "cat"},
  {"features": [0, 1, 0.5, 0], "label": "dog"},
  {"features": [0.5, 0, 1, 0], "label": "cat"}]}' > learned.json
published "$(jq --raw-output .request.id learned.json)"

echo "-- predict"
ask /v1/predict --data '{"samples": [{"features": [1, 0, 0, 0.4]}]}' | jq --compact-output .

echo "-- forget the first, by its receipt"
jq '{receipts: [.receipts[0]]}' learned.json > receipt.json
ask /v1/forget --data @receipt.json > forgotten.json
published "$(jq --raw-output .request.id forgotten.json)"

echo "-- check the certificate here: the receipt does not leave this machine"
curl --silent --show-error --fail "$URL/v1/certificates/2" > second.json
jq --compact-output '{receipt: .receipts[0]}' learned.json > mine.jsonl
neverseen verify mine second.json --receipt mine.jsonl --public-key "$(jq --raw-output .public_key about.json)"

echo "-- learn what is left from scratch: bit for bit the published model"
printf '%s\n' label,a,b,c,d dog,0,1,0.5,0 cat,0.5,0,1,0 > left.csv
neverseen verify retrain shop left.csv | tee retrained.txt
DIGEST=$(ask /v1/model | jq --raw-output .digest)
grep --quiet "$DIGEST" retrained.txt && echo "equal: $DIGEST"
