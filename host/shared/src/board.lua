-- What each gateway says to the others. KEYS: the board. ARGV: gateway; microseconds for which it says so; the note. Gives
-- the notes of the others that are there.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + tonumber(ARGV[2])) .. ' ' .. ARGV[3])
local all, others = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local ends, note = string.match(all[i + 1], '^(%d+) (.*)$')
  if tonumber(ends) < now then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others[#others + 1] = note
  end
end
redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[2]) / 1000))
return others
