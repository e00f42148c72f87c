package kafkaclient

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/youmark/pkcs8"
)

// tls reads the ssl.* keys. It returns nil where TLS isn't used or something is wrong.
func (p *parser) tls(use bool) *tls.Config {
	if !use {
		p.superfluous(needsSSLHint, keyCALocation, keyCAPEM, keyCertificate, keyKey, keyKeyPassword, keyIdentification, keyVerify)
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: p.roots(), Certificates: p.certificates()}
	switch strings.ToLower(cmp.Or(p.keys[keyIdentification], identificationHTTP)) {
	case identificationHTTP:
	case identificationNone:
		verifyChainOnly(config)
	default:
		p.problem(keyIdentification, "https or none", "%q is not an algorithm", p.keys[keyIdentification])
	}
	switch strings.ToLower(cmp.Or(p.keys[keyVerify], "true")) {
	case "true":
	case "false":
		config.InsecureSkipVerify, config.VerifyConnection = true, nil
	default:
		p.problem(keyVerify, "true or false", "%q is neither", p.keys[keyVerify])
	}
	return config
}

// verifyChainOnly checks that a known authority signed the broker's certificate, and not which host it is for.
func verifyChainOnly(config *tls.Config) {
	roots := config.RootCAs
	config.InsecureSkipVerify = true // crypto/tls has no switch for the host alone: the chain is checked below.
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the broker sent no certificate")
		}
		opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, certificate := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(certificate)
		}
		_, err := state.PeerCertificates[0].Verify(opts)
		return err
	}
}

// roots is nil, the system's authorities, where no key names others.
func (p *parser) roots() *x509.CertPool {
	location, text := p.keys[keyCALocation], p.keys[keyCAPEM]
	if location == "" && text == "" {
		return nil
	}
	pool := x509.NewCertPool()
	if text != "" && !pool.AppendCertsFromPEM([]byte(text)) {
		p.problem(keyCAPEM, "PEM text that begins with -----BEGIN CERTIFICATE-----", "has no certificate")
	}
	if location == "" {
		return pool
	}
	files := []string{location}
	if info, err := os.Stat(location); err == nil && info.IsDir() {
		files, _ = filepath.Glob(filepath.Join(location, "*")) // A pattern of this form is never malformed.
	}
	found := false
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil && len(files) == 1 {
			p.problem(keyCALocation, "", "%v", err)
			return pool
		}
		found = err == nil && pool.AppendCertsFromPEM(data) || found
	}
	if !found {
		p.problem(keyCALocation, "a file or folder with certificates in PEM form", "%s has no certificate", location)
	}
	return pool
}

// certificates is the client's own certificate, for mutual TLS.
func (p *parser) certificates() []tls.Certificate {
	certFile, keyFile := p.keys[keyCertificate], p.keys[keyKey]
	switch {
	case certFile == "" && keyFile == "":
		if _, ok := p.keys[keyKeyPassword]; ok {
			p.problem(keyKeyPassword, "set ssl.key.location, or remove it", "has no key to open")
		}
		return nil
	case certFile == "":
		p.problem(keyCertificate, "", "is needed with ssl.key.location")
		return nil
	case keyFile == "":
		p.problem(keyKey, "", "is needed with ssl.certificate.location")
		return nil
	}
	cert, err := os.ReadFile(certFile)
	if err != nil {
		p.problem(keyCertificate, "", "%v", err)
	}
	key, keyErr := os.ReadFile(keyFile)
	if keyErr != nil {
		p.problem(keyKey, "", "%v", keyErr)
	}
	if err != nil || keyErr != nil {
		return nil
	}
	plainKey, err := openKey(key, p.keys[keyKeyPassword])
	if err != nil {
		p.problem(keyKeyPassword, "", "%s can't be opened: %v", keyFile, err)
		return nil
	}
	pair, err := tls.X509KeyPair(cert, plainKey)
	if err != nil {
		p.problem(keyCertificate, "both in PEM form, the certificate first in its file", "%s and %s are no pair: %v", certFile, keyFile, err)
		return nil
	}
	return []tls.Certificate{pair}
}

// openKey returns the private key of a PEM file in the clear. Two forms of encryption are in use: PKCS #8 (openssl 1.1 and later) and the older one with a Proc-Type header.
func openKey(data []byte, password string) ([]byte, error) {
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return data, nil
		}
		old := x509.IsEncryptedPEMBlock(block) //nolint:staticcheck // SA1019: weak, but what librdkafka's users have
		if block.Type != "ENCRYPTED PRIVATE KEY" && !old {
			continue
		}
		if password == "" {
			return nil, errors.New("it is encrypted and ssl.key.password is not set")
		}
		if old {
			der, err := x509.DecryptPEMBlock(block, []byte(password)) //nolint:staticcheck // SA1019: as above
			if err != nil {
				return nil, errors.New("ssl.key.password doesn't open it")
			}
			return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}), nil
		}
		key, err := pkcs8.ParsePKCS8PrivateKey(block.Bytes, []byte(password))
		if err != nil {
			return nil, errors.New("ssl.key.password doesn't open it")
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, fmt.Errorf("its kind of key is not known: %w", err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
	}
}
