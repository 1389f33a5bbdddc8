-- A request has ended. KEYS: as it was let in with. ARGV: its name, tokens used; then for each subject requests and tokens a
-- minute, and the change that charged its tokens; at last the tokens that it was charged.
local name, used, reserved = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[#ARGV])
for i = 1, #KEYS / 2 do
  local requests, tokens, since = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  redis.call('ZREM', KEYS[2 * i], name)
  if tokens > 0 then
    local meter = load(KEYS[2 * i - 1], requests, tokens)
    change(meter)
    if used <= reserved then
      give_back(meter, since, (reserved - used) * UNIT)
    else
      meter[3] = meter[3] + (used - reserved) * UNIT
    end
    -- A charge from before the meter was last empty is none of its own.
    if since >= meter[7] then
      meter[6] = meter[6] - 1
      if meter[6] == 0 then meter[5] = {} end
    end
    save(KEYS[2 * i - 1], meter)
  end
end
return 1
