;;; qwen-companion-prompts-test.el --- Tests of sending prompts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Which way a prompt goes to a CLI, when, and what becomes of those that wait.

;;; Code:

(require 'savehist)
(require 'qwen-companion-prompts)
(require 'qwen-companion-test-helper)

(defmacro qwen-companion-prompts-test--with (state &rest body)
  "Run BODY with a CLI in STATE, a property list, which reads prompts from a file.
`sent' is the list of what it has got, newest first, each with the way.
The function `become' gives it another activity, since now or TIME."
  (declare (indent 1) (debug t))
  `(with-temp-buffer
     (let* ((buffer (current-buffer))
            (sent nil)
            (session (list :id "one" :client "Qwen Code" :family 'qwen :state ,state))
            (qwen-companion-prompts-history nil)
            (qwen-companion-terminal-prompt-file "/spool/prompts-1"))
       (setq-local qwen-companion-terminal-prompt-file "/spool/prompts-1")
       (insert "> Type your message\n")
       (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
                  (lambda () (list session)))
                 ((symbol-function 'qwen-companion-terminal-session-buffer)
                  (lambda (_session) buffer))
                 ((symbol-function 'qwen-companion-backend-spool) (lambda () "/spool/"))
                 ((symbol-function 'qwen-companion-backend-call)
                  (lambda (method payload)
                    (should (eq 'prompt method))
                    (should (equal "/spool/prompts-1" (plist-get payload :file)))
                    (push (list 'file (plist-get payload :text)) sent)
                    t))
                 ((symbol-function 'qwen-companion-terminal-send-prompt)
                  (lambda (_buffer text) (push (list 'paste text) sent))))
         (cl-flet ((send (text &optional anyway)
                     (qwen-companion-prompts-send session "/root" text anyway))
                   (become (activity)
                     ;; In another millisecond than what was before.
                     (sleep-for 0.002)
                     (plist-put session :state
                                (list :activity activity
                                      :since (qwen-companion-prompts--now)))
                     (qwen-companion-prompts-sessions-changed)))
           (ignore #'send #'become)
           (unwind-protect
               (progn ,@body)
             (when qwen-companion-prompts--timer
               (cancel-timer qwen-companion-prompts--timer))))))))

(defmacro qwen-companion-prompts-test--impatiently (&rest body)
  "Run BODY where nothing that may come from a CLI is waited for."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-prompts--begin-seconds 0)
         (qwen-companion-prompts--hooks-seconds 0)
         (qwen-companion-prompts--retry-seconds 0))
     ,@body))

(ert-deftest qwen-companion-prompts-test-each-is-a-turn-in-order ()
  (qwen-companion-prompts-test--with '(:activity idle :since 1)
    (should (equal "Sent to" (substring (send "one") 0 7)))
    ;; It is still idle: the prompt takes its time to come to it.
    (should (string-match-p "1 prompt waits" (send "two")))
    (send "three")
    (should (equal '((file "one")) sent))
    (become 'working)
    (become 'asking)
    (should (equal '((file "one")) sent))
    (become 'idle)
    (qwen-companion-prompts-sessions-changed)
    (should (equal '((file "two") (file "one")) sent))
    (become 'working)
    (become 'idle)
    (should (equal '((file "three") (file "two") (file "one")) sent))
    (should-not (qwen-companion-prompts-waiting))
    (should (equal '("three" "two" "one") (qwen-companion-prompts-of "/root")))))

(ert-deftest qwen-companion-prompts-test-a-command-holds-up-nothing ()
  "A CLI does not tell that it has begun with a command of its own."
  (qwen-companion-prompts-test--with '(:activity idle :since 1)
    (qwen-companion-prompts-test--impatiently
      (send "/memory show")
      (send "next")
      (qwen-companion-test-wait-for (equal '((file "next") (file "/memory show")) sent)))))

(ert-deftest qwen-companion-prompts-test-a-cancelled-turn-drops-what-waits ()
  (qwen-companion-prompts-test--with '(:activity working :since 1)
    (send "two")
    (send "instead" t)
    (let ((messages (qwen-companion-test-messages
                      (become 'working)
                      (become 'cancelled))))
      (should (string-match-p "a queued prompt was not sent" messages)))
    (should (equal '((file "instead")) sent))
    (should-not (qwen-companion-prompts-waiting))
    (should (member "two" (qwen-companion-prompts-of "/root")))
    ;; What comes after it is sent.
    (become 'working)
    (become 'cancelled)
    (send "again")
    (should (equal '(file "again") (car sent)))))

(ert-deftest qwen-companion-prompts-test-waits-for-a-cli-that-starts ()
  "A prompt waits until the CLI watches its file; before, it would be lost."
  (qwen-companion-prompts-test--with nil
    (send "one")
    (should-not sent)
    (become 'idle)
    (should (equal '((file "one")) sent)))
  (qwen-companion-prompts-test--with nil
    (qwen-companion-prompts-test--impatiently
      (send "one")
      (send "two")
      (qwen-companion-test-wait-for (equal '((paste "one\n\ntwo")) sent)))))

(ert-deftest qwen-companion-prompts-test-a-cli-that-turns-out-to-have-no-hooks ()
  "The prompt with which it was started is pasted, as nothing will report that it is ready."
  (qwen-companion-prompts-test--with nil
    (qwen-companion-prompts-test--impatiently
      (cl-letf (((symbol-function 'qwen-companion-terminal-open)
                 (lambda (root arguments)
                   (setq-local qwen-companion-terminal-directory root
                               qwen-companion-terminal-arguments arguments)
                   (run-hooks 'qwen-companion-terminal-opened-hook))))
        (qwen-companion-prompts-start "/root" '("--model" "a") "one"))
      (should-not sent)
      (plist-put session :no-hooks "they are off")
      (qwen-companion-prompts-sessions-changed)
      (qwen-companion-test-wait-for (equal '((paste "one")) sent)))))

(ert-deftest qwen-companion-prompts-test-without-hooks-it-is-pasted ()
  "It is not appended to typed text, unless the user wants that."
  (qwen-companion-prompts-test--with nil
    (plist-put session :no-hooks "they are off")
    (send "one")
    (should (equal '((paste "one")) sent))
    (erase-buffer)
    (insert "> half a thou")
    (qwen-companion-test-answering nil
      (should-error (send "two") :type 'user-error))
    (should (equal '((paste "one")) sent))
    (should (member "two" (qwen-companion-prompts-of "/root")))
    (qwen-companion-test-answering t
      (send "two"))
    (should (equal '(paste "two") (car sent)))
    ;; Of another program that is not known.
    (plist-put session :family nil)
    (send "three")
    (should (equal '(paste "three") (car sent)))))

(ert-deftest qwen-companion-prompts-test-nothing-is-pasted-after-typed-text ()
  "Without a file, prompts are pasted when the turn is over and nothing is typed."
  (qwen-companion-prompts-test--with '(:activity working :since 1)
    (setq-local qwen-companion-terminal-prompt-file nil)
    (send "one")
    (erase-buffer)
    (insert "> half a thou")
    (qwen-companion-prompts-test--impatiently
      (become 'idle)
      (should-not sent)
      (erase-buffer)
      (insert "> Type your message")
      (qwen-companion-test-wait-for (equal '((paste "one")) sent)))))

(ert-deftest qwen-companion-prompts-test-to-a-place ()
  "A CLI there that reads prompts gets them by its session, whatever is typed."
  (qwen-companion-prompts-test--with '(:activity idle :since 1)
    (setq-local qwen-companion-terminal-prompt-file nil)
    (erase-buffer)
    (insert "> half a thou")
    (plist-put session :place "/ssh:far:")
    (plist-put session :prompts t)
    (let (calls)
      (cl-letf (((symbol-function 'qwen-companion-backend-call)
                 (lambda (method payload) (push (cons method payload) calls))))
        (should (string-prefix-p "Sent to" (send "one"))))
      (should (equal '((prompt :session "one" :text "one")) calls)))
    (should-not sent)))

(ert-deftest qwen-companion-prompts-test-outside-of-emacs ()
  "Only by the file, and only to a CLI that reports its state by hooks."
  (qwen-companion-prompts-test--with nil
    (setq-local qwen-companion-terminal-outside t)
    (erase-buffer)
    (send "one")
    (become 'idle)
    (should (equal '((file "one")) sent))
    (become 'working)
    (setq-local qwen-companion-terminal-prompt-file nil)
    (should-error (send "two") :type 'user-error))
  (qwen-companion-prompts-test--with nil
    (setq-local qwen-companion-terminal-outside t)
    (plist-put session :no-hooks "they are off")
    (should-error (send "one") :type 'user-error)
    (should-not sent))
  ;; One that should have told, and has not.
  (qwen-companion-prompts-test--with nil
    (setq-local qwen-companion-terminal-outside t)
    (qwen-companion-prompts-test--impatiently
      (qwen-companion-test-said "not sent, see the history"
        (send "one")
        (qwen-companion-test-wait-for (not (qwen-companion-prompts-waiting))))
      (should-not sent)
      (should (member "one" (qwen-companion-prompts-of "/root"))))))

(ert-deftest qwen-companion-prompts-test-savehist-keeps-the-history ()
  "The history survives an Emacs session without a prompt."
  (qwen-companion-test-with-files nil
    (let ((savehist-file (expand-file-name "history"))
          (savehist-additional-variables nil)
          (savehist-mode-hook nil)
          (savehist-loaded t)
          (qwen-companion-prompts-history nil))
      (unwind-protect
          (progn
            (savehist-mode 1)
            (qwen-companion-prompts-remember "/r" "Hello")
            (savehist-save)
            (dolist (order '(savehist-first mode-first))
              ;; Emacs starts again.
              (savehist-mode -1)
              (setq savehist-additional-variables nil
                    savehist-mode-hook nil
                    qwen-companion-prompts-history nil)
              (load savehist-file nil t t)
              (should (equal '("Hello") (qwen-companion-prompts-of "/r")))
              (when (eq order 'savehist-first)
                (savehist-mode 1))
              (qwen-companion-test-with-process
                (qwen-companion-mode 1)
                (when (eq order 'mode-first)
                  (savehist-mode 1))
                (qwen-companion-mode -1))
              (savehist-save)
              (setq qwen-companion-prompts-history nil)
              (load savehist-file nil t t)
              (should (equal '("Hello") (qwen-companion-prompts-of "/r")))))
        (savehist-mode -1)))))

(provide 'qwen-companion-prompts-test)
;;; qwen-companion-prompts-test.el ends here
