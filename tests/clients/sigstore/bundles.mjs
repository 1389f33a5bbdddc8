// Holds `tidegate plugin pull` against sigstore's own JavaScript packages: they make a bundle by a key of P-256 or ed25519,
// it is attached in Debian's docker-registry the way that cosign 3 does it, and a server that trusts the key must take the
// plugin, one that trusts another must not.
//
//     npm ci && node bundles.mjs TIDEGATE COMPONENT.wasm [SCENE...]
//
// Needs `docker-registry`. One line for each scene; the exit status is 1 where one went wrong.
import { bundleFromJSON, bundleToJSON } from '@sigstore/bundle';
import { DSSEBundleBuilder } from '@sigstore/sign';
import { Verifier, toSignedEntity, toTrustMaterial } from '@sigstore/verify';
import assert from 'node:assert';
import { execFile, spawn } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';

const BUNDLE = 'application/vnd.dev.sigstore.bundle.v0.3+json';
const EMPTY = 'application/vnd.oci.empty.v1+json';
const INDEX = 'application/vnd.oci.image.index.v1+json';
const MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const SIGNED = 'https://sigstore.dev/cosign/sign/v1';
const [tidegate, component, ...wanted] = process.argv.slice(2).map((arg, at) => (at < 2 ? path.resolve(arg) : arg));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tidegate-bundles-'));
const sha256 = bytes => `sha256:${crypto.createHash('sha256').update(bytes).digest('hex')}`;

function run(args) {
  const env = { ...process.env, DOCKER_CONFIG: folder, XDG_CACHE_HOME: path.join(os.tmpdir(), 'tidegate-tests-cache') };
  return new Promise(done => execFile(tidegate, args.split(' '), { cwd: folder, env, timeout: 60_000 },
    (error, out, err) => done({ good: !error, said: out + err, out })));
}

async function good(args) {
  const { good, said, out } = await run(args);
  assert(good, `${args}: ${said}`);
  return out.trim();
}

async function newKey(type, options) {
  const { privateKey, publicKey } = crypto.generateKeyPairSync(type, options);
  const pem = publicKey.export({ type: 'spki', format: 'pem' });
  const der = publicKey.export({ type: 'spki', format: 'der' });
  fs.writeFileSync(path.join(folder, 'key.pub'), pem);
  const hint = crypto.createHash('sha256').update(der).digest('base64'); // as cosign's
  const sign = async data => ({
    signature: crypto.sign(type === 'ec' ? 'sha256' : null, data, privateKey), key: { $case: 'publicKey', publicKey: pem, hint },
  });
  return { sign, der, hint, line: await good('plugin key show key.pub') };
}

async function bundle(key, digest, predicateType = SIGNED) {
  const statement = {
    _type: 'https://in-toto.io/Statement/v1', subject: [{ digest: { sha256: digest.slice(7) } }], predicateType, predicate: {},
  };
  const builder = new DSSEBundleBuilder({ signer: key, witnesses: [] });
  const made = await builder.create({ data: Buffer.from(JSON.stringify(statement)), type: 'application/vnd.in-toto+json' });
  return Buffer.from(JSON.stringify(bundleToJSON(made)));
}

/** By sigstore's own verifier, without a log. */
function verify(bytes, key) {
  const nobody = { certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [] };
  const trust = toTrustMaterial(nobody, { [key.hint]: { rawBytes: key.der } });
  const verifier = new Verifier(trust, { tlogThreshold: 0, timestampThreshold: 0, ctlogThreshold: 0 });
  verifier.verify(toSignedEntity(bundleFromJSON(JSON.parse(bytes))));
}

async function put(url, body, type) {
  const answer = await fetch(url, { method: 'PUT', body, headers: { 'content-type': type } });
  assert.equal(answer.status, 201, `${url}: ${await answer.text()}`);
}

/** The requests of cosign's `WriteReferrer`; `listed` is what its registry client says of it in a list that it keeps itself. */
async function attach(at, digest, bytes, predicateType, listed) {
  for (const blob of [Buffer.from('{}'), bytes]) {
    const place = new URL((await fetch(`${at}/blobs/uploads/`, { method: 'POST' })).headers.get('location'), at);
    place.searchParams.set('digest', sha256(blob));
    await put(place, blob, 'application/octet-stream');
  }
  const head = await fetch(`${at}/manifests/${digest}`, { method: 'HEAD', headers: { accept: MANIFEST } });
  const manifest = JSON.stringify({
    schemaVersion: 2, mediaType: MANIFEST,
    config: { mediaType: EMPTY, size: 2, digest: sha256('{}'), artifactType: BUNDLE },
    layers: [{ mediaType: BUNDLE, size: bytes.length, digest: sha256(bytes) }],
    annotations: { 'dev.sigstore.bundle.content': 'dsse-envelope', 'dev.sigstore.bundle.predicateType': predicateType },
    subject: { mediaType: MANIFEST, size: Number(head.headers.get('content-length')), digest },
    artifactType: BUNDLE,
  });
  await put(`${at}/manifests/${sha256(manifest)}`, manifest, MANIFEST);
  if (!listed) return;
  const one = { mediaType: MANIFEST, size: manifest.length, digest: sha256(manifest), artifactType: listed };
  await put(`${at}/manifests/${digest.replace(':', '-')}`, JSON.stringify({ schemaVersion: 2, mediaType: INDEX, manifests: [one] }), INDEX);
}

/** docker-registry 2 knows no referrers API: this stands before it and answers for that, by lists or with a status. */
async function front(registry, status) {
  const lists = {};
  const server = http.createServer(async (asked, answer) => {
    const body = Buffer.concat(await asked.toArray());
    const subject = asked.url.split('/referrers/')[1];
    if (subject && status !== 200) return answer.writeHead(status, { location: 'https://registry.invalid/' }).end();
    if (subject) {
      answer.writeHead(200, { 'content-type': INDEX });
      return answer.end(JSON.stringify({ schemaVersion: 2, mediaType: INDEX, manifests: lists[subject] ?? [] }));
    }
    if (asked.method === 'PUT' && asked.headers['content-type'] === MANIFEST) {
      const { subject, mediaType, artifactType, annotations } = JSON.parse(body);
      const one = { mediaType, size: body.length, digest: sha256(body), artifactType, annotations };
      if (subject) (lists[subject.digest] ??= []).push(one);
    }
    const { method, url, headers } = asked;
    http.request({ host: '127.0.0.1', port: registry, method, path: url, headers }, from => {
      answer.writeHead(from.statusCode, from.headers);
      from.pipe(answer);
    }).end(body);
  });
  await new Promise(ready => server.listen(0, '127.0.0.1', ready));
  return server.address().port;
}

async function startRegistry() {
  const free = net.createServer().listen(0, '127.0.0.1');
  await new Promise(ready => free.once('listening', ready));
  const { port } = free.address();
  await new Promise(done => free.close(done));
  const config = `{version: 0.1, storage: {filesystem: {rootdirectory: ${folder}/registry}}, http: {addr: "127.0.0.1:${port}"}}`;
  fs.writeFileSync(path.join(folder, 'registry.yml'), config);
  const child = spawn('docker-registry', ['serve', path.join(folder, 'registry.yml')], { stdio: 'ignore' });
  child.on('error', error => { console.error(`docker-registry: ${error.message}`); process.exit(1); });
  process.on('exit', () => child.kill());
  for (let tries = 0; ; tries++) {
    if (await fetch(`http://127.0.0.1:${port}/v2/`).then(answer => answer.ok, () => false)) return port;
    assert(tries < 200, 'docker-registry does not answer');
    await new Promise(done => setTimeout(done, 50));
  }
}

async function isTaken(trusted) {
  const stage = '[[pipeline.stage]]\nplugin = "mine"\nfile = "taken"\n';
  fs.writeFileSync(path.join(folder, 'tidegate.toml'), `[plugins]\ntrusted_keys = ["${trusted.line}"]\n${stage}`);
  const { good, said } = await run('check tidegate.toml');
  assert(good || said.includes('none of plugins.trusted_keys') || said.includes('is not signed'), said);
  return good;
}

process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
fs.copyFileSync(component, path.join(folder, 'mine.wasm'));
await good('plugin pack mine.wasm');
const digest = JSON.parse(await good('plugin inspect --json mine.oci')).artifact;
const p256 = await newKey('ec', { namedCurve: 'P-256' });
const other = await newKey('ec', { namedCurve: 'P-256' });
const ed25519 = await newKey('ed25519');
const registry = await startRegistry();
// name, key, predicate, what the list calls it ('' where the registry keeps it), port, whether it is a signature
const scenes = [
  ['p256-listed-by-cosign-3.1', p256, SIGNED, BUNDLE, registry, true],
  ['p256-listed-by-cosign-3.0', p256, SIGNED, EMPTY, registry, true],
  ['p256-by-referrers-api', p256, SIGNED, '', await front(registry, 200), true],
  ['ed25519', ed25519, SIGNED, BUNDLE, registry, true],
  ['provenance-is-no-signature', p256, 'https://slsa.dev/provenance/v1', BUNDLE, registry, false],
  ['referrers-answered-303', p256, SIGNED, BUNDLE, await front(registry, 303), true],
  ['referrers-answered-406', p256, SIGNED, BUNDLE, await front(registry, 406), true],
];
const unknown = wanted.filter(name => !scenes.some(([known]) => known === name));
assert(!unknown.length, `there is no scene ${unknown}`);
for (const [name, key, predicate, listed, port, signs] of scenes.filter(([name]) => !wanted.length || wanted.includes(name))) {
  try {
    const bytes = await bundle(key, digest, predicate);
    verify(bytes, key);
    assert.throws(() => verify(bytes, { ...other, hint: key.hint }));
    const place = `127.0.0.1:${port}/scenes/${name}`;
    await good(`plugin push oci://${place}:1 --from mine.oci`);
    await attach(`http://127.0.0.1:${port}/v2/scenes/${name}`, digest, bytes, predicate, listed);
    fs.rmSync(path.join(folder, 'taken'), { recursive: true, force: true });
    await good(`plugin pull oci://${place}:1 --output taken`);
    assert.equal(await isTaken(key), signs, 'by its key');
    assert.equal(await isTaken(other), false, 'by another key');
    // What was pulled is what sigstore made, and travels on.
    if (signs) {
      assert.deepEqual(fs.readFileSync(path.join(folder, 'taken/blobs/sha256', sha256(bytes).slice(7))), bytes);
      await good(`plugin push oci://127.0.0.1:${registry}/next/${name}:1 --from taken`);
      await good(`plugin pull oci://127.0.0.1:${registry}/next/${name}:1 --output taken`);
      assert.equal(await isTaken(key), true, 'by its key, from where it was pushed on to');
    }
    console.log(`good   ${name}`);
  } catch (error) {
    process.exitCode = 1;
    console.log(`wrong  ${name}: ${error.message.split('\n')[0]}`);
  }
}
process.exit();
