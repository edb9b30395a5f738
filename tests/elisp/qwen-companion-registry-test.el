;;; qwen-companion-registry-test.el --- Tests of prompts to CLIs outside  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Which CLI outside of Emacs gets a prompt, what is asked before, and what is
;; said of it.

;;; Code:

(require 'qwen-companion-ask)
(require 'qwen-companion-resume)
(require 'qwen-companion-test-helper)

(defun qwen-companion-registry-test--cli (id &rest keys)
  "Return a registered CLI ID with KEYS, which takes prompts."
  (append keys (list :id id :pid (string-to-number id) :session "conversation" :name (concat "site-" id)
                     :directory (directory-file-name default-directory) :version "0.24.4"
                     :kind 'tui :start (string-to-number id) :listens t)))

(defmacro qwen-companion-registry-test--with (controller clis &rest body)
  "Run BODY in a project while the Python process tells of CLIS.
CONTROLLER is what it tells of the token."
  (declare (indent 2) (debug t))
  `(qwen-companion-test-with-backend
     (qwen-companion-test-with-files nil
       (let ((qwen-companion-registry--clis nil)
             (qwen-companion-registry--by-key (make-hash-table :test #'equal))
             (qwen-companion-registry--controller 'none)
             (qwen-companion-registry--sent nil)
             (qwen-companion-prompts-history nil)
             (qwen-companion-qwen-command '("sh" "-x"))
             (kill-ring nil)
             (root (directory-file-name default-directory)))
         (ignore root)
         (qwen-companion-registry-on-registered (list :clis ,clis :controller ,controller))
         (save-window-excursion
           ,@body)))))

(defun qwen-companion-registry-test--ask (text)
  "Send TEXT as a prompt about the project; return the prompts sent so far."
  (qwen-companion-ask t)
  (erase-buffer)
  (insert text)
  (qwen-companion-ask-submit)
  (qwen-companion-test-sent 'registry-prompt))

(defun qwen-companion-registry-test--told (status &optional reason)
  "Return the message for a receipt STATUS of the last prompt, for REASON."
  (qwen-companion-test-messages
    (qwen-companion-registry-on-receipt
     (list :id (caar qwen-companion-registry--sent) :status status :reason reason))))

(ert-deftest qwen-companion-registry-test-asks-before-it-makes-a-token ()
  (qwen-companion-registry-test--with 'none (list (qwen-companion-registry-test--cli "7"))
    (let (asked)
      (qwen-companion-test-answering (lambda (question) (push question asked) nil)
        (should-error (qwen-companion-registry-test--ask "Do it") :type 'user-error))
      (should (string-match-p "controllers remove. revokes it" (car asked)))
      (should-not (qwen-companion-test-sent 'registry-prompt))
      ;; It is in the prompt buffer still.
      (should (equal "Do it" (buffer-string)))
      (qwen-companion-test-answering t
        (should (equal '("Do it")
                       (mapcar #'qwen-companion-test-text-in
                               (qwen-companion-registry-test--ask "Do it")))))
      (let ((sent (car (qwen-companion-test-sent 'registry-prompt))))
        (should (equal '("7" "conversation" ("sh" "-x"))
                       (list (plist-get sent :cli) (plist-get sent :session)
                             (plist-get sent :program)))))
      (qwen-companion-registry-on-registered '(:controller valid))
      (qwen-companion-test-answering (lambda (_) (error "Asked again"))
        (should-not (plist-get (cadr (qwen-companion-registry-test--ask "More")) :program)))
      (qwen-companion-registry-on-registered '(:controller revoked))
      (qwen-companion-test-answering (lambda (question) (push question asked) nil)
        (should-error (qwen-companion-registry-test--ask "Even more") :type 'user-error))
      (should (string-match-p "revoked the token of Emacs" (car asked))))))

(ert-deftest qwen-companion-registry-test-the-receipt-decides-what-is-said ()
  (qwen-companion-registry-test--with 'valid (list (qwen-companion-registry-test--cli "7"))
    (should (qwen-companion-registry-test--ask "Do it"))
    (should (equal "site-7: at the model" (qwen-companion-registry-test--told 'model)))
    (should (string-match-p "runs after the current turn" (qwen-companion-registry-test--told 'queued)))
    (should (string-match-p "/peers" (qwen-companion-registry-test--told 'held)))
    (should (equal "site-7: sent, no receipt yet" (qwen-companion-registry-test--told 'sent)))
    (should (string-match-p "\\`site-7: sent, but no receipt.*may still arrive"
                            (qwen-companion-registry-test--told 'unanswered)))
    (dolist (status '(refused denied expired misaddressed dropped closed gone too-long no-token))
      (should (string-match-p "\\`Not sent to site-7: " (qwen-companion-registry-test--told status))))
    (should (string-match-p "%s cannot be started" (qwen-companion-registry-test--told
                                                    'failed "%s cannot be started")))
    (should-not kill-ring)
    ;; Of a prompt that is forgotten nothing can be said.
    (setq qwen-companion-registry--sent nil)
    (qwen-companion-registry-on-receipt '(:id 1 :status model))))

(ert-deftest qwen-companion-registry-test-says-of-each-of-fifty-prompts-what-became-of-it ()
  (qwen-companion-registry-test--with 'valid (list (qwen-companion-registry-test--cli "7"))
    (dotimes (number 50)
      (qwen-companion-prompts-send (qwen-companion-registry-cli "7") root (format "Do %d" number)))
    (let ((requests (mapcar (lambda (sent) (plist-get sent :id))
                            (qwen-companion-test-sent 'registry-prompt))))
      (should (equal (mapconcat (lambda (_) "site-7: at the model") requests "\n")
                     (qwen-companion-test-messages
                       (dolist (request requests)
                         (qwen-companion-registry-on-receipt
                          (list :id request :status 'model)))))))))

(ert-deftest qwen-companion-registry-test-a-prompt-that-has-not-arrived-comes-back ()
  "Sending it again takes one key, and a prompt begun meanwhile stays."
  (qwen-companion-registry-test--with 'valid
      (list (qwen-companion-registry-test--cli "7") (qwen-companion-registry-test--cli "9"))
    (qwen-companion-ask-cli (qwen-companion-registry-cli "7"))
    (let ((prompt (current-buffer))
          (window (selected-window)))
      (insert "Do it")
      (qwen-companion-ask-submit)
      (should-not (eq window (selected-window)))
      (setq window (selected-window))
      (should (string-match-p "may still arrive\\.  It is in .*C-c C-c sends it again"
                              (qwen-companion-registry-test--told 'unanswered)))
      (should (eq window (selected-window)))
      (with-selected-window (get-buffer-window prompt)
        (should (equal "Do it" (buffer-string)))
        (qwen-companion-ask-submit))
      (should (equal '("7" "7") (mapcar (lambda (sent) (plist-get sent :cli))
                                        (qwen-companion-test-sent 'registry-prompt))))
      (qwen-companion-registry-test--told 'unanswered)
      (should (string-match-p "site-7: at the model; it is no longer in the prompt buffer"
                              (qwen-companion-registry-test--told 'model)))
      (with-current-buffer prompt
        (should (equal "" (buffer-string)))
        (insert "Begun"))
      (should (string-match-p "M-p in .* has the prompt" (qwen-companion-registry-test--told 'gone)))
      (with-current-buffer prompt
        (should (equal "Begun" (buffer-string)))
        (qwen-companion-registry-test--told 'delivered)
        (should (equal "Begun" (buffer-string)))
        (erase-buffer)
        (qwen-companion-ask-previous)
        (should (equal "Do it" (buffer-string)))))))

(ert-deftest qwen-companion-registry-test-offers-to-paste-after-one-that-has-not-arrived ()
  "Where the CLI runs in a terminal of Emacs, and never while a message is handled."
  (qwen-companion-registry-test--with 'valid (list (qwen-companion-registry-test--cli "7"))
    (let* ((buffer (generate-new-buffer "terminal"))
           (session (list :id "s" :pid 7 :family 'qwen :no-hooks "none"))
           (asked nil)
           (pasted nil))
      (unwind-protect
          (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                     (lambda (session) (and (equal 7 (qwen-companion-session-pid session)) buffer)))
                    ((symbol-function 'qwen-companion-terminal-send-prompt)
                     (lambda (_buffer text) (push text pasted))))
            (with-current-buffer buffer (insert "> Type your message"))
            (cl-flet ((send (answer)
                        (qwen-companion-test-answering (lambda (question) (push question asked) answer)
                          (qwen-companion-prompts-send session root "Do it"))))
              (send nil)
              (should-not asked)
              (qwen-companion-registry-test--told 'unanswered)
              (should-not asked)
              (send nil)
              (should (equal '("terminal has not confirmed the last prompt; paste this one? ") asked))
              (should (= 2 (length (qwen-companion-test-sent 'registry-prompt))))
              (should-not pasted)
              (qwen-companion-registry-test--told 'unanswered)
              (send t)
              (should (equal '("Do it") pasted))
              (should (= 2 (length (qwen-companion-test-sent 'registry-prompt))))))
        (kill-buffer buffer)))))

(ert-deftest qwen-companion-registry-test-refuses-prompts-that-cannot-be-sent ()
  (qwen-companion-registry-test--with 'valid
      (list (qwen-companion-registry-test--cli "7")
            (qwen-companion-registry-test--cli "8" :listens nil)
            (qwen-companion-registry-test--cli "9" :gone t))
    (pcase-dolist (`(,why ,id ,text) '(("would reach the model of site-7 as text" "7" "/clear")
                                       ("crossSessionMessaging is off" "8" "Do it")
                                       ("site-9 has ended" "9" "Do it")))
      (qwen-companion-test-refused why (qwen-companion-prompts-send (qwen-companion-registry-cli id) root text)))
    (should-not (qwen-companion-test-sent 'registry-prompt))))

(ert-deftest qwen-companion-registry-test-which-cli-gets-a-prompt ()
  "One of the project; one that a prompt was begun for; never one that does not listen."
  (qwen-companion-registry-test--with 'valid
      (list (qwen-companion-registry-test--cli "7" :directory "/elsewhere")
            (qwen-companion-registry-test--cli "8" :listens nil)
            (qwen-companion-registry-test--cli "9")
            (qwen-companion-registry-test--cli "10" :kind 'serve))
    (should (equal '("9") (mapcar (lambda (sent) (plist-get sent :cli))
                                  (qwen-companion-registry-test--ask "Do it"))))
    (qwen-companion-ask-cli (qwen-companion-registry-cli "7"))
    (should (equal "/elsewhere/" default-directory))
    (insert "You")
    (qwen-companion-ask-submit)
    (should (equal '("9" "7") (mapcar (lambda (sent) (plist-get sent :cli))
                                      (qwen-companion-test-sent 'registry-prompt))))
    (qwen-companion-ask-cli (qwen-companion-registry-cli "7"))
    (insert "Again")
    (qwen-companion-registry-on-registered '(:gone ("7") :controller valid))
    (qwen-companion-test-refused "has ended" (qwen-companion-ask-submit))
    (should (equal "Again" (buffer-string)))
    (kill-buffer)))

;;; Bringing one home

(defmacro qwen-companion-registry-test--home (key answer &rest body)
  "Run BODY after the CLI \"7\" is brought home by KEY and the ANSWER to a question.
`opened' is the list of the terminals opened since, (DIRECTORY ARGUMENTS)."
  (declare (indent 2) (debug t))
  `(let ((opened nil))
     (cl-letf (((symbol-function 'qwen-companion-terminal-open)
                (lambda (&rest arguments) (push arguments opened)))
               ((symbol-function 'read-multiple-choice)
                (lambda (_prompt choices &rest _) (assq ,key choices))))
       (qwen-companion-test-with-state 'ready
         (qwen-companion-test-answering ,answer
           (qwen-companion-bring-home (qwen-companion-registry-cli "7")))
         ,@body))))

(ert-deftest qwen-companion-registry-test-a-conversation-comes-home-once-its-process-has-ended ()
  (qwen-companion-registry-test--with 'none (list (qwen-companion-registry-test--cli "7"))
    (should-error (qwen-companion-registry-test--home ?t nil) :type 'user-error)
    (should-not (qwen-companion-test-sent 'registry-end))
    (qwen-companion-registry-test--home ?t t
      (should (equal '((:cli "7")) (qwen-companion-test-sent 'registry-end)))
      (should-not opened)
      (qwen-companion-registry-on-ended '(:cli "7" :ended t))
      (qwen-companion-test-wait-for opened)
      (should (equal `((,root ("--resume" "conversation"))) opened)))
    (qwen-companion-registry-test--home ?t t
      (let (said)
        (cl-letf (((symbol-function 'message)
                   (lambda (format &rest arguments) (setq said (apply #'format format arguments)))))
          (qwen-companion-registry-on-ended '(:cli "7" :ended nil))
          (qwen-companion-test-wait-for said))
        (should (equal "site-7 is still running, so its conversation stays there" said)))
      (should-not opened))))

(defun qwen-companion-registry-test--resume (command id)
  "Call COMMAND to go on with the conversation ID."
  (qwen-companion-test-with-state 'ready
    (cl-letf (((symbol-function 'completing-read) (lambda (&rest _) "1 tea"))
              ((symbol-function 'qwen-companion-backend-request)
               (lambda (_method _payload callback)
                 (funcall callback `(:sessions ((:id ,id :time 1000 :prompt "tea")))))))
      (funcall command default-directory)
      (qwen-companion-test-wait-for
       (not (cl-find #'qwen-companion-resume--offer timer-list :key #'timer--function))))))

(ert-deftest qwen-companion-registry-test-a-conversation-that-is-open-is-not-opened-twice ()
  "Its turns would vanish: Emacs goes to its terminal, or ends the CLI first."
  (dolist (command '(qwen-companion-resume qwen-companion-continue))
    (qwen-companion-registry-test--with 'none (list (qwen-companion-registry-test--cli "7"))
      (let (opened questions (answer nil))
        (cl-letf (((symbol-function 'qwen-companion-terminal-open)
                   (lambda (_directory arguments) (push (cadr arguments) opened))))
          (qwen-companion-test-answering (lambda (question) (push question questions) answer)
            (qwen-companion-registry-test--resume command "other")
            (should (equal '("other") opened))
            (should-not questions)
            ;; Outside of Emacs.
            (qwen-companion-registry-test--resume command "conversation")
            (should (string-match-p "site-7 is still running" (car questions)))
            (setq answer t)
            (qwen-companion-registry-test--resume command "conversation")
            (should (equal '((:cli "7")) (qwen-companion-test-sent 'registry-end)))
            (should (equal '("other") opened))
            (qwen-companion-registry-on-ended '(:cli "7" :ended t))
            (qwen-companion-test-wait-for (equal '("conversation" "other") opened))
            ;; In a terminal of this Emacs.
            (with-temp-buffer
              (let ((terminal (current-buffer)))
                (qwen-companion-test-with-sessions
                    (list (list :id "s" :pid 7 :client "Qwen" :state '(:conversation "mine")))
                  (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                             (lambda (_) terminal)))
                    (setq questions nil)
                    (qwen-companion-registry-test--resume command "mine")
                    (should (eq terminal (window-buffer)))
                    (should-not questions)
                    (should-not (member "mine" opened))
                    ;; It has begun another one since its start.
                    (qwen-companion-registry-test--resume command "conversation")
                    (should (= 3 (length opened)))))))))))))

(ert-deftest qwen-companion-registry-test-one-that-was-killed-comes-home-at-once ()
  (qwen-companion-registry-test--with 'none
      (list (qwen-companion-registry-test--cli "7" :gone t))
    (qwen-companion-registry-test--home ?t (lambda (_) (error "Asked"))
      (should (equal `((,root ("--resume" "conversation"))) opened)))))

(ert-deftest qwen-companion-registry-test-tells-how-a-cli-is-connected ()
  (qwen-companion-registry-test--with 'none (list (qwen-companion-registry-test--cli "7"))
    (should (string-match-p "Type /ide enable in the terminal of site-7"
                            (qwen-companion-test-messages
                              (qwen-companion-registry-test--home ?i nil))))
    (should-not (qwen-companion-test-sent 'registry-end))))

(ert-deftest qwen-companion-registry-test-why-a-cli-takes-no-prompts-is-said-before-one-is-written ()
  (qwen-companion-registry-test--with 'valid
      (list '(:id "7" :pid 7 :start 0 :name "" :problem "its record cannot be used: 100%s")
            (qwen-companion-registry-test--cli "8" :listens nil)
            (qwen-companion-registry-test--cli "9" :kind 'serve)
            (qwen-companion-registry-test--cli "10" :gone t))
    (pcase-dolist (`(,id ,said) '(("7" "process 7: its record cannot be used: 100%s")
                                  ("8" "site-8: it does not accept prompts from other programs")
                                  ("9" "site-9 runs in a daemon; send the prompt in a chat")
                                  ("10" "site-10 has ended")))
      (dolist (send (list #'qwen-companion-ask-cli
                          (lambda (cli) (qwen-companion-prompts-send cli root "Do it"))))
        (qwen-companion-test-refused (concat "\\`" said)
          (funcall send (qwen-companion-registry-cli id)))))))

(ert-deftest qwen-companion-registry-test-some-cannot-come-home ()
  (qwen-companion-registry-test--with 'none
      (list (qwen-companion-registry-test--cli "7" :kind 'serve)
            (qwen-companion-registry-test--cli "8" :problem "its directory is gone"))
    (pcase-dolist (`(,why ,session)
                   `(("in a daemon" ,(qwen-companion-registry-cli "7"))
                     ("directory is gone" ,(qwen-companion-registry-cli "8"))
                     ("0.23 or later" (:id "gemini" :client "Gemini CLI"))))
      (qwen-companion-test-refused why (qwen-companion-bring-home session)))))

(provide 'qwen-companion-registry-test)
;;; qwen-companion-registry-test.el ends here
