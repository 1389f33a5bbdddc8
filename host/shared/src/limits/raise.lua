-- A request may cost more than it was let in with. KEYS: as it was let in with. ARGV: how many tokens more; then for each
-- subject requests and tokens a minute.
local more = tonumber(ARGV[1])
for i = 1, #KEYS / 2 do
  local requests, tokens = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  if tokens > 0 then
    local meter = load(KEYS[2 * i - 1], requests, tokens)
    change(meter)
    meter[3] = meter[3] + more * UNIT
    save(KEYS[2 * i - 1], meter)
  end
end
return 1
