;;; qwen-companion-daemon-test.el --- Tests of connecting to qwen serve  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is asked of the Python process, and what its reports do.  The real
;; process and the real daemon have their part in tests/e2e.

;;; Code:

(require 'qwen-companion-test-helper)
(require 'qwen-companion-daemon)
(require 'auth-source)

(defconst qwen-companion-daemon-test--url "http://127.0.0.1:4170")

(defmacro qwen-companion-daemon-test-with (&rest body)
  "Run BODY with the option on, a ready companion and no daemon yet.
The directory is a project; `auth-sources' is a file in it that has a
token for the URL, which is the value of the option."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files
       '(("authinfo" "machine 127.0.0.1 port 4170 login qwen password the-token\n"))
     (qwen-companion-test-with-backend
       (let ((qwen-companion-daemon-enabled t)
             (qwen-companion-daemon-url qwen-companion-daemon-test--url)
             (qwen-companion-daemon-functions nil)
             (qwen-companion-backend-methods nil)
             (qwen-companion-backend--state 'ready)
             (auth-sources (list (expand-file-name "authinfo")))
             (auth-source-do-cache nil)
             (process-environment (cons "QWEN_IDE_DAEMON_URL" process-environment))
             (connected t)
             (inhibit-message t))
         (cl-letf (((symbol-function 'qwen-companion-backend-connected-p)
                    (lambda () connected)))
           (unwind-protect
               (progn ,@body)
             (qwen-companion-daemon--forget)))))))

(defmacro qwen-companion-daemon-test-connecting (&rest body)
  "Run BODY after the user has asked for a connection."
  (declare (indent 0) (debug t))
  `(qwen-companion-daemon-test-with
     (call-interactively #'qwen-companion-daemon-connect)
     ,@body))

(defun qwen-companion-daemon-test--report (method &rest payload)
  "Let the Python process call METHOD with PAYLOAD."
  (funcall (alist-get method qwen-companion-backend-methods) payload))

(defun qwen-companion-daemon-test--left ()
  "Return the hooks, request, report and token left of a daemon."
  (append (and (memq #'qwen-companion-daemon--send-request qwen-companion-backend-connected-hook) '(hook))
          (and (memq #'qwen-companion-daemon--on-companion-state qwen-companion-state-functions) '(hook))
          qwen-companion-daemon--request
          qwen-companion-daemon--report
          (and qwen-companion-daemon--token '(token))))

;;; What is said

(ert-deftest qwen-companion-daemon-test-described-once ()
  "A connection that is back is said in few words, another daemon in full."
  (qwen-companion-daemon-test-with
    (let ((said (lambda (state &optional host)
                  (qwen-companion-test-messages
                    (qwen-companion-daemon-test--report
                     'daemon-state :state state :text (and (eq state 'unreachable) "It is away.")
                     :host (or host "127.0.0.1:4170") :local t :workspace "/project")))))
      (qwen-companion-daemon-connect "/project")
      (should (string-match-p "workspace /project: files, commands" (funcall said 'connected)))
      (should (string-match-p "It is away" (funcall said 'unreachable)))
      (should (string-match-p "Connected again to qwen serve at 127\\.0\\.0\\.1:4170\\'"
                              (string-trim (funcall said 'connected))))
      (funcall said 'unreachable)
      (should (string-match-p "files, commands" (funcall said 'connected "127.0.0.1:9")))
      (qwen-companion-daemon-stop)
      (qwen-companion-daemon-connect "/project")
      (should (string-match-p "files, commands" (funcall said 'connected "127.0.0.1:9"))))))

;;; Off

(ert-deftest qwen-companion-daemon-test-default-off ()
  "By default, every way to a daemon is refused and nothing is sent."
  (should-not (default-value 'qwen-companion-daemon-enabled))
  (qwen-companion-daemon-test-with
    (let ((qwen-companion-daemon-enabled nil))
      (dolist (command '(qwen-companion-daemon-connect qwen-companion-daemon-start))
        (qwen-companion-test-refused "qwen-companion-daemon-enabled" (call-interactively command))))
    (should-not qwen-companion-test-calls)
    (should-not qwen-companion-backend-methods)
    (should-not (qwen-companion-daemon-test--left))))

(ert-deftest qwen-companion-daemon-test-default-off-loads-nothing ()
  "The companion and its mode line work without this file being loaded."
  (with-temp-buffer
    (should
     (eql 0 (call-process
             (expand-file-name invocation-name invocation-directory) nil t nil
             "-Q" "--batch"
             "-l" (expand-file-name
                   "scripts/checkout.el"
                   (file-name-directory (locate-library "qwen-companion")))
             "--eval" "(require 'qwen-companion)"
             "--eval" "(qwen-companion--lighter)"
             "--eval" "(kill-emacs (if (featurep 'qwen-companion-daemon) 1 0))")))))

;;; Connecting

(ert-deftest qwen-companion-daemon-test-connects-with-the-token-of-auth-sources ()
  (qwen-companion-daemon-test-connecting
    (should (equal (list (list :url qwen-companion-daemon-test--url
                               :root (directory-file-name default-directory)
                               :sources auth-sources))
                   (qwen-companion-test-sent 'daemon-connect)))
    (should-not (qwen-companion-test-buffers-with "the-token"))
    (should (equal " Daemon:connecting" (qwen-companion-daemon-lighter)))
    (qwen-companion-daemon-test--report
     'daemon-state :state 'connected :host "127.0.0.1:4170" :local t :workspace "/project")
    (should (eq 'connected (qwen-companion-daemon-state)))
    (should (equal " Daemon" (qwen-companion-daemon-lighter)))))

(defmacro qwen-companion-daemon-test-with-json (&rest body)
  "Run BODY where only Emacs can read the token."
  (declare (indent 0) (debug t))
  `(qwen-companion-daemon-test-with
     (write-region "[{\"machine\": \"127.0.0.1\", \"port\": \"4170\", \"login\": \"qwen\", \"password\": \"the-secret-é\"}]"
                   nil "authinfo.json" nil 'silent)
     (let ((auth-sources (list (expand-file-name "authinfo.json"))))
       ,@body)))

(ert-deftest qwen-companion-daemon-test-token-that-only-emacs-reads-is-erased ()
  "It is handed over once, and nothing in Emacs has it then."
  (qwen-companion-daemon-test-with-json
    (let (sent)
      (cl-letf* ((call (symbol-function 'qwen-companion-backend-call))
                 ((symbol-function 'qwen-companion-backend-call)
                  (lambda (method payload)
                    (when-let* ((token (plist-get payload :token)))
                      (setq sent (copy-sequence token)))
                    (funcall call method payload))))
        (call-interactively #'qwen-companion-daemon-connect))
      (should (equal "the-secret-é" sent))
      (should (string-match-p "\\`\0+\\'" (plist-get (car (qwen-companion-test-sent 'daemon-connect))
                                                  :token)))
      (should-not (stringp qwen-companion-daemon--token))
      (should-not (qwen-companion-test-buffers-with "the-secret-é")))))

(ert-deftest qwen-companion-daemon-test-token-of-another-daemon-is-not-used ()
  (dolist (url '("http://127.0.0.1:4171" "http://localhost:4170" "https://127.0.0.1"))
    (qwen-companion-daemon-test-with-json
      (let ((qwen-companion-daemon-url url))
        (call-interactively #'qwen-companion-daemon-connect)
        (should-not (plist-member (car (qwen-companion-test-sent 'daemon-connect)) :token))))))

(ert-deftest qwen-companion-daemon-test-url-of-the-environment ()
  (qwen-companion-daemon-test-with
    (let ((qwen-companion-daemon-url nil))
      (should-error (call-interactively #'qwen-companion-daemon-connect) :type 'user-error)
      (setenv "QWEN_IDE_DAEMON_URL" "http://localhost:1")
      (call-interactively #'qwen-companion-daemon-connect)
      (should (equal "http://localhost:1"
                     (plist-get (car (qwen-companion-test-sent 'daemon-connect)) :url))))))

(ert-deftest qwen-companion-daemon-test-starts-one-by-its-file-name ()
  "The Python process does not know the variable `exec-path'."
  (qwen-companion-daemon-test-with
    (write-region "#!/bin/sh\n" nil "my-qwen" nil 'silent)
    (set-file-modes "my-qwen" #o700)
    (let ((exec-path (list default-directory))
          (qwen-companion-qwen-command '("my-qwen" "--extra")))
      (call-interactively #'qwen-companion-daemon-start))
    (should (equal (list (list :root (directory-file-name default-directory)
                               :program (list (expand-file-name "my-qwen") "--extra")))
                   (qwen-companion-test-sent 'daemon-start)))))

(ert-deftest qwen-companion-daemon-test-token-of-one-is-not-for-another ()
  (qwen-companion-daemon-test-connecting
    (qwen-companion-daemon-test--report 'daemon-state :state 'refused :text "no")
    (let ((qwen-companion-qwen-command '("sh")))
      (call-interactively #'qwen-companion-daemon-start))
    (should-not (plist-member (car (qwen-companion-test-sent 'daemon-start)) :token))))

(ert-deftest qwen-companion-daemon-test-refusals ()
  "Without a program, a directory here or a companion, nothing is sent."
  (qwen-companion-daemon-test-with
    (pcase-dolist (`(,program ,directory) `(("no-such-program" ,default-directory)
                                            ("sh" "/ssh:host:/")
                                            ("sh" ,(expand-file-name "missing"))))
      (let ((qwen-companion-qwen-command (list program)))
        (should-error (qwen-companion-daemon-start directory) :type 'user-error)))
    (qwen-companion-test-with-failure "no Python"
      (should-error (call-interactively #'qwen-companion-daemon-connect) :type 'user-error)
      (qwen-companion-test-with-state 'off
        (should-error (call-interactively #'qwen-companion-daemon-connect) :type 'user-error)))
    (should-not qwen-companion-test-calls)
    (should-not (qwen-companion-daemon-test--left))))

(ert-deftest qwen-companion-daemon-test-one-at-a-time ()
  (qwen-companion-daemon-test-connecting
    (dolist (state '(starting connecting connected unreachable))
      (qwen-companion-daemon-test--report 'daemon-state :state state)
      (qwen-companion-test-refused (symbol-name state)
        (call-interactively #'qwen-companion-daemon-connect)))
    (qwen-companion-daemon-test--report 'daemon-state :state 'refused :text "wrong token")
    (call-interactively #'qwen-companion-daemon-connect)
    (should (= 2 (length (qwen-companion-test-sent 'daemon-connect))))
    (should (eq 'connecting (qwen-companion-daemon-state)))))

;;; The state

(ert-deftest qwen-companion-daemon-test-trouble-is-said-once ()
  (qwen-companion-daemon-test-connecting
    (should
     (equal "qwen-companion: nobody listens"
            (qwen-companion-test-messages
              (dotimes (_ 2)
                (qwen-companion-daemon-test--report
                 'daemon-state :state 'unreachable :text "nobody listens")))))
    (let ((lighter (qwen-companion-daemon-lighter)))
      (should (equal " Daemon:unreachable" lighter))
      (should (equal "nobody listens" (get-text-property 0 'help-echo lighter)))
      (should (string-suffix-p lighter (qwen-companion-test-lighter))))))

(ert-deftest qwen-companion-daemon-test-locality-is-said ()
  "A remote daemon must not look as if it had this machine's files."
  (qwen-companion-daemon-test-connecting
    (let ((said (qwen-companion-test-messages
                  (qwen-companion-daemon-test--report
                   'daemon-state :state 'connected :host "example.org" :workspace "/srv/it"))))
      (dolist (part '("example.org" "/srv/it" "credentials" "the machine that the daemon is on"))
        (should (string-match-p (regexp-quote part) said))))))

(ert-deftest qwen-companion-daemon-test-reports-are-handed-on-in-order ()
  (qwen-companion-daemon-test-connecting
    (let* (seen
           (qwen-companion-daemon-functions
            (list (lambda (method payload) (push (cons method payload) seen)))))
      (qwen-companion-daemon-test--report 'daemon-turn :session "a")
      (qwen-companion-daemon-test--report 'daemon-permission :session "b")
      (qwen-companion-daemon-stop)
      (qwen-companion-daemon-test--report 'daemon-turn :session "late")
      (should (equal '((daemon-turn :session "a") (daemon-permission :session "b"))
                     (nreverse seen))))))

;;; The Python process comes and goes

(ert-deftest qwen-companion-daemon-test-a-new-process-is-asked-again ()
  (qwen-companion-daemon-test-with
    (setq connected nil)
    (call-interactively #'qwen-companion-daemon-connect)
    (should-not qwen-companion-test-calls)
    (setq connected t)
    (dotimes (_ 2)
      (run-hooks 'qwen-companion-backend-connected-hook))
    (pcase-let ((`(,first ,second) (qwen-companion-test-sent 'daemon-connect)))
      (should (equal auth-sources (plist-get first :sources)))
      (should (equal first second)))))

(ert-deftest qwen-companion-daemon-test-a-new-process-waits-for-a-token-of-emacs ()
  "No passphrase can be typed then, so a message names the command to run."
  (qwen-companion-daemon-test-with-json
    (setq connected nil)
    (call-interactively #'qwen-companion-daemon-connect)
    (setq connected t)
    (dotimes (_ 2)
      (run-hooks 'qwen-companion-backend-connected-hook))
    (should (= 1 (length (qwen-companion-test-sent 'daemon-connect))))
    (should (eq 'refused (qwen-companion-daemon-state)))
    (should (string-match-p "M-x qwen-companion-daemon-connect" (qwen-companion-daemon-description)))
    (call-interactively #'qwen-companion-daemon-connect)
    (should (= 2 (length (qwen-companion-test-sent 'daemon-connect))))))

(ert-deftest qwen-companion-daemon-test-nothing-is-left-after-it ()
  (dolist (end (list #'qwen-companion-daemon-stop
                     (lambda () (run-hook-with-args 'qwen-companion-state-functions 'off))
                     (lambda () (run-hook-with-args 'qwen-companion-state-functions 'error))))
    (qwen-companion-daemon-test-connecting
      (should (qwen-companion-daemon-test--left))
      (run-hook-with-args 'qwen-companion-state-functions 'starting)
      (should (qwen-companion-daemon-test--left))
      (funcall end)
      (should (equal (eq end #'qwen-companion-daemon-stop) (= 1 (length (qwen-companion-test-sent 'daemon-disconnect)))))
      (should-not (qwen-companion-daemon-test--left))
      (should (equal "" (qwen-companion-daemon-lighter)))
      (should-error (qwen-companion-daemon-stop) :type 'user-error))))

(ert-deftest qwen-companion-daemon-test-left-and-connected-at-once ()
  "The end of the previous connection is reported late, and changes nothing."
  (qwen-companion-daemon-test-connecting
    (qwen-companion-daemon-stop)
    (call-interactively #'qwen-companion-daemon-connect)
    (qwen-companion-daemon-test--report 'daemon-state :state 'off)
    (should (eq 'connecting (qwen-companion-daemon-state)))
    (qwen-companion-daemon-test--report 'daemon-state :state 'connected)
    (should (eq 'connected (qwen-companion-daemon-state)))))

(ert-deftest qwen-companion-daemon-test-the-token-is-shown-nowhere ()
  "It is in no message, log or error while it is looked up and sent."
  (qwen-companion-daemon-test-with
    (let ((said (qwen-companion-test-messages
                  (call-interactively #'qwen-companion-daemon-connect)
                  (qwen-companion-daemon-test--report
                   'daemon-state :state 'refused :text "the token is wrong"))))
      (should (string-match-p "the token is wrong" said))
      (dolist (text (list said
                          (format "%S" qwen-companion-daemon--request)
                          (qwen-companion-test-buffer-text (qwen-companion-backend--log-buffer))
                          (qwen-companion-test-lighter)))
        (should-not (string-match-p "the-token" text))))))

(provide 'qwen-companion-daemon-test)
;;; qwen-companion-daemon-test.el ends here
