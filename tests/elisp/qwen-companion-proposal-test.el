;;; qwen-companion-proposal-test.el --- Tests of the life of a proposal  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-proposal-test-with-one (&rest body)
  "Run BODY while a CLI proposes \"two\\n\" for a file with \"one\\n\"; `proposal'."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-proposals '(("a.txt" "one\n"))
     (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
       ,@body)))

(defun qwen-companion-proposal-test--prepare (proposal)
  "Read the text on disk for PROPOSAL, as showing it does first."
  (qwen-companion-review--prepare proposal))

(defun qwen-companion-proposal-test--kept ()
  "Return the texts of the buffers in which something was kept."
  (cl-loop for buffer in (buffer-list)
           when (string-prefix-p "*qwen-companion kept" (buffer-name buffer))
           collect (qwen-companion-test-buffer-text buffer)))

(defun qwen-companion-proposal-test--header (proposal &optional disk)
  "Return the header line of PROPOSAL; with DISK non-nil, that of its disk side."
  (qwen-companion-test-header (if disk
                                  (qwen-companion-proposal-disk-buffer proposal)
                                (qwen-companion-proposal-buffer proposal))))

(defun qwen-companion-proposal-test--on-disk (proposal)
  "Return the text of the disk side of PROPOSAL."
  (qwen-companion-test-buffer-text (qwen-companion-proposal-disk-buffer proposal)))

(defun qwen-companion-proposal-test--open (name &rest more)
  "Let a CLI propose a change of the file NAME as MORE says; return the refusal."
  (qwen-companion-proposal-on-open
   (append more (list :id "1" :session "session-1" :client "qwen" :path (expand-file-name name)))))

(ert-deftest qwen-companion-proposal-test-the-cli-is-told-before-the-review-goes ()
  "To take the windows from the screen may take longer than telling the CLI."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let* (told
           (qwen-companion-proposal-ended-functions
            (list (lambda (&rest _) (setq told (qwen-companion-test-outcomes))))))
      (qwen-companion-test-propose "a.txt" "two\n")
      (qwen-companion-diff-accept)
      (should (equal '((accepted "two\n")) told)))))

(ert-deftest qwen-companion-proposal-test-redisplay-while-an-outcome-is-sent ()
  "As for the message that the disk is full: the header of another review is drawn."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((one (qwen-companion-test-propose "a.txt" "two\n"))
          (held (qwen-companion-test-propose "a.txt" "three\n" :held t))
          drawn)
      (qwen-companion-proposal-test--prepare held)
      (qwen-companion-test-edit held "mine\n")
      (cl-letf (((symbol-function 'qwen-companion-backend-call)
                 (lambda (&rest _)
                   (push (qwen-companion-proposal-test--header held) drawn))))
        (qwen-companion-diff-accept one))
      (should (string-search "may fail to write your edits" (car drawn))))))

(ert-deftest qwen-companion-proposal-test-the-review-goes-when-the-cli-cannot-be-told ()
  "The outcome is kept, to be sent again."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let* (ended
           (qwen-companion-proposal-ended-functions
            (list (lambda (proposal &rest _) (push proposal ended))))
           (proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (cl-letf (((symbol-function 'qwen-companion-backend-call)
                 (lambda (&rest _) (error "Cannot be sent"))))
        (should-error (qwen-companion-diff-accept)))
      (should (equal (list proposal) ended))
      (should-not (qwen-companion-proposals))
      (qwen-companion-proposal-resend)
      (should (equal '((accepted "two\n")) (qwen-companion-test-outcomes))))))

(defun qwen-companion-proposal-test--parts (id)
  "Return the text that was sent in parts under ID."
  (mapconcat (lambda (part)
               (should (equal id (plist-get part :id)))
               (plist-get part :text))
             (qwen-companion-test-sent 'text-part) ""))

(ert-deftest qwen-companion-proposal-test-no-room-for-a-long-text ()
  "Accepted texts and answers go without a file; one message says so."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let* ((long (apply #'concat (make-list 12000 "naïve 😀\n")))
           (directory (expand-file-name "gone/"))
           (qwen-companion-backend--server (qwen-companion-test-server :spool directory))
           (accepted (qwen-companion-test-propose "a.txt" long))
           (closed (qwen-companion-test-propose "b.txt" long)))
      (let ((said (qwen-companion-test-messages (qwen-companion-diff-accept accepted))))
        (should (string-match-p "accepted .*a\\.txt" said))
        (should (string-match-p
                 (concat (regexp-quote (abbreviate-file-name directory))
                         ".*No such file or directory")
                 said)))
      (let ((outcome (car (qwen-companion-test-sent 'outcome))))
        (should (eq 'accepted (plist-get outcome :outcome)))
        (should (equal long (qwen-companion-proposal-test--parts (plist-get outcome :text-parts)))))
      ;; The parts have to be there before what they belong to.
      (should (eq 'outcome (caar qwen-companion-test-calls)))
      (dolist (part (qwen-companion-test-sent 'text-part))
        (should (<= (string-bytes (plist-get part :text)) 65536)))
      (setq qwen-companion-test-calls nil)
      (let* (answer
             (said (qwen-companion-test-messages (setq answer (qwen-companion-test-close closed)))))
        (should (equal "" said))
        (should (equal long (qwen-companion-proposal-test--parts (plist-get answer :text-parts)))))
      (should-not (qwen-companion-proposals)))))

(ert-deftest qwen-companion-proposal-test-an-outcome-that-was-not-taken-is-sent-again ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let* ((qwen-companion-proposal--redeliver-delay 0.01)
           (proposal (qwen-companion-test-propose "a.txt" "two\n"))
           (id (qwen-companion-proposal-id proposal))
           (fail (lambda ()
                   (qwen-companion-proposal-on-call-failed
                    'outcome (car (last (qwen-companion-test-sent 'outcome)))))))
      (qwen-companion-diff-accept)
      (funcall fail)
      (qwen-companion-test-set-clock -3600)
      ;; As when the user types.
      (qwen-companion-test-context-update)
      (qwen-companion-test-wait-for (= 2 (length (qwen-companion-test-outcomes))))
      (should (equal '(accepted "two\n") (cadr (qwen-companion-test-outcomes))))
      ;; Not when it is known to have come meanwhile, nor another call.
      (funcall fail)
      (qwen-companion-proposal-on-call-failed 'context nil)
      (qwen-companion-proposal-on-delivered (list :id id))
      (funcall fail)
      (let (over)
        (run-at-time 0.05 nil (lambda () (setq over t)))
        (qwen-companion-test-wait-for over))
      (should (= 2 (length (qwen-companion-test-outcomes)))))))

(ert-deftest qwen-companion-proposal-test-accept-of-a-file-that-became-unreadable ()
  "The acceptance is sent anyway: the CLI reports the failure itself."
  (qwen-companion-proposal-test-with-one
    (cl-letf (((symbol-function 'insert-file-contents-literally)
               (lambda (file &rest _)
                 (signal 'file-error (list "Opening input file" "Permission denied" file)))))
      (qwen-companion-diff-accept))
    (should (equal '((accepted "two\n")) (qwen-companion-test-outcomes)))
    (should-not (buffer-live-p (qwen-companion-proposal-buffer proposal)))))

(ert-deftest qwen-companion-proposal-test-reject-sends-no-text ()
  (qwen-companion-proposal-test-with-one
    (qwen-companion-diff-reject proposal)
    (should (equal '((rejected nil)) (qwen-companion-test-outcomes)))))

(ert-deftest qwen-companion-proposal-test-killing-its-buffer-answers-nothing ()
  "No edit is lost, whether the review was shown or not."
  (dolist (shown '(nil t))
    (qwen-companion-proposal-test-with-one
      (when shown
        (qwen-companion-proposal-test--prepare proposal))
      (qwen-companion-test-edit proposal "mine\n")
      (qwen-companion-test-said "a\\.txt put aside"
        (kill-buffer (qwen-companion-proposal-buffer proposal)))
      (should-not (qwen-companion-test-outcomes))
      (qwen-companion-diff-accept)
      (should (equal '((accepted "two\nmine\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-only-the-first-outcome-counts ()
  (qwen-companion-proposal-test-with-one
    (qwen-companion-diff-accept proposal)
    (should-error (qwen-companion-diff-accept proposal) :type 'user-error)
    (should-error (qwen-companion-diff-reject proposal) :type 'user-error)
    (should (= 1 (length (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-accept-while-the-cli-closes ()
  "Answered here and in the terminal at once: the terminal was first.
The CLI gets the text with its own answer, and what it may not write
is kept."
  (qwen-companion-proposal-test-with-one
    (qwen-companion-test-edit proposal "mine\n")
    (qwen-companion-diff-accept)
    (let ((close (list :id (qwen-companion-proposal-id proposal))))
      (should (equal '(:text "two\nmine\n") (qwen-companion-proposal-on-close close)))
      (should-not (qwen-companion-proposal-on-close close)))
    (should (eq 'closed (qwen-companion-proposal-state proposal)))
    (should (equal '("two\nmine\n") (qwen-companion-proposal-test--kept)))
    (should-not (qwen-companion-proposal-snapshot))
    (should (= 1 (length (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-a-text-that-is-not-unicode-while-the-cli-closes ()
  "The CLI gets no such text, and the text of the user is kept."
  (dolist (odd (list (string-to-multibyte "\300") (string #xD800)))
    (qwen-companion-proposal-test-with-one
      (qwen-companion-test-edit proposal odd)
      (should-error (qwen-companion-test-close proposal))
      (should (eq 'closed (qwen-companion-proposal-state proposal)))
      (should (equal (list (concat "two\n" odd)) (qwen-companion-proposal-test--kept))))))

(ert-deftest qwen-companion-proposal-test-reject-while-the-cli-closes ()
  (qwen-companion-proposal-test-with-one
    (qwen-companion-diff-reject)
    (should-not (qwen-companion-test-close proposal))
    (should-not (qwen-companion-proposal-test--kept))
    (should-not (qwen-companion-proposal-snapshot))
    ;; One that was never seen.
    (should-not (qwen-companion-proposal-on-close '(:id "never seen")))))

(ert-deftest qwen-companion-proposal-test-commands-without-a-proposal ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (dolist (command '(qwen-companion-diff-accept qwen-companion-diff-reject
                                                  qwen-companion-diff-open))
      (qwen-companion-test-refused "no open proposals" (funcall command))
      (qwen-companion-test-refused "No proposal for" (funcall command "a.txt")))))

(ert-deftest qwen-companion-proposal-test-ambiguity-is-an-error ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n") ("b.txt" "one\n"))
    (qwen-companion-test-propose "a.txt" "two\n")
    (qwen-companion-test-propose "b.txt" "two\n")
    (let ((text (cadr (should-error (qwen-companion-diff-accept) :type 'user-error))))
      (should (string-match-p "a\\.txt" text))
      (should (string-match-p "b\\.txt" text)))
    (qwen-companion-diff-accept "b.txt")
    (should (equal (list (expand-file-name "a.txt"))
                   (mapcar #'qwen-companion-proposal-path (qwen-companion-proposals))))
    (with-current-buffer (qwen-companion-proposal-buffer (car (qwen-companion-proposals)))
      (qwen-companion-diff-reject))
    (should (equal '((accepted "two\n") (rejected nil)) (qwen-companion-test-outcomes)))))

;;; Which proposal

(ert-deftest qwen-companion-proposal-test-each-proposal-can-be-chosen ()
  "Two sessions of one CLI with proposals for one file can be told apart."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((first (qwen-companion-test-propose "a.txt" "two\n"))
          (second (qwen-companion-test-propose "a.txt" "three\n" :session "session-2"))
          labels)
      (qwen-companion-test-choosing
          (lambda (_prompt table &rest _)
            (pcase-let ((`(,category . ,offered) (qwen-companion-test-candidates table)))
              (should (eq 'qwen-companion-proposal category))
              (should (string-match-p "\\` +[0-9:]+, waiting\\'" (cdar offered)))
              (car (setq labels (reverse (mapcar #'car offered))))))
        (call-interactively #'qwen-companion-diff-accept)
        (should (equal (list first) (qwen-companion-proposals)))
        (should (eq 'accepted (qwen-companion-proposal-state second)))
        (should (string-suffix-p "a.txt (qwen)" (cadr labels)))
        (should (equal (concat (cadr labels) " <2>") (car labels)))))))

(ert-deftest qwen-companion-proposal-test-in-a-terminal-only-its-own-are-offered ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n") ("b.txt" "one\n"))
    (let ((mine (list (qwen-companion-test-propose "a.txt" "two\n")
                      (qwen-companion-test-propose "b.txt" "two\n"))))
      (qwen-companion-test-propose "a.txt" "three\n" :session "session-2")
      (with-temp-buffer
        (let ((terminal (current-buffer)) offered)
          (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                     (lambda (session) (and (equal "session-1" (qwen-companion-session-id session)) terminal))))
            (qwen-companion-test-set-sessions '((:id "session-1") (:id "session-2")))
            (qwen-companion-test-choosing
                (lambda (_prompt table &rest _)
                  (car (setq offered (all-completions "" table))))
              (call-interactively #'qwen-companion-diff-accept))
            (should (eq 'accepted (qwen-companion-proposal-state (car mine)))))
          (should (equal '("a.txt" "b.txt")
                         (mapcar (lambda (name)
                                   (file-name-nondirectory (car (split-string name " ("))))
                                 offered))))))))

(ert-deftest qwen-companion-proposal-test-newer-proposal-supersedes ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((older (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-edit older "mine\n")
      (let ((newer (qwen-companion-test-propose "a.txt" "three\n")))
        (should (equal (list newer) (qwen-companion-proposals)))
        (should (eq 'superseded (qwen-companion-proposal-state older)))
        (should (equal '("two\nmine\n") (qwen-companion-proposal-test--kept)))
        (should-not (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-newer-proposal-voids-an-answer-on-its-way ()
  "The CLI waits for the newer one only: the accepted edits are kept."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((older (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-edit older "mine\n")
      (qwen-companion-diff-accept)
      (let ((newer (qwen-companion-test-propose "a.txt" "three\n")))
        (should (equal '("two\nmine\n") (qwen-companion-proposal-test--kept)))
        (should (equal (list (qwen-companion-proposal-id newer))
                       (mapcar (lambda (known) (plist-get known :id))
                               (qwen-companion-proposal-snapshot))))
        ;; What comes next is compared with the disk, not with the void text.
        (qwen-companion-proposal-test--prepare newer)
        (should (equal "one\n" (qwen-companion-proposal-test--on-disk newer)))
        (qwen-companion-test-deliver older)
        (should (equal (list newer) (qwen-companion-proposals)))))))

(ert-deftest qwen-companion-proposal-test-the-same-text-again-is-the-same-review ()
  "No second announcement; the edits stay, and one answer answers."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let* ((announced 0)
           (qwen-companion-proposal-begun-functions
            (cons (lambda (_proposal) (cl-incf announced)) qwen-companion-proposal-begun-functions))
           (proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-edit proposal "mine\n")
      (qwen-companion-test-silent
        (should (eq proposal
                    (qwen-companion-test-propose
                     "a.txt" "two\n"
                     :id (qwen-companion-proposal-id proposal)))))
      (should (= 1 announced))
      (should (= 1 (length (qwen-companion-proposals))))
      (qwen-companion-diff-accept)
      (should-not (qwen-companion-proposal-test--open "a.txt" :id (qwen-companion-proposal-id proposal) :text "two\n"))
      (should-not (qwen-companion-proposals))
      (should (equal '((accepted "two\nmine\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-the-same-long-text-again-leaves-no-file ()
  (qwen-companion-proposal-test-with-one
    (let* ((file (expand-file-name "long" (qwen-companion-backend-spool))))
      (write-region "two\n" nil file nil 'silent)
      (should-not (qwen-companion-proposal-test--open "a.txt" :id (qwen-companion-proposal-id proposal) :text-file file))
      (should-not (file-exists-p file)))))

(ert-deftest qwen-companion-proposal-test-two-clis-propose-the-same-file ()
  "Accepting one review is mentioned in the other, which keeps its text."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((first (qwen-companion-test-propose "a.txt" "two\n"))
          (second (qwen-companion-test-propose "a.txt" "three\n"
                                               :session "session-2"
                                               :client "gemini")))
      (should (= 2 (length (qwen-companion-proposals))))
      (qwen-companion-proposal-test--prepare second)
      (qwen-companion-test-said "a proposal of gemini for it is still open"
        (qwen-companion-diff-accept first))
      (with-current-buffer (qwen-companion-proposal-buffer second)
        (should (qwen-companion-test-header-p "proposed  by gemini  .*a proposal by qwen was accepted meanwhile"))
        (should (equal "three\n" (buffer-string))))
      ;; The other is compared with that already, and to write it is no news.
      (qwen-companion-test-write "a.txt" "two\n")
      (qwen-companion-test-counting refreshed 'qwen-companion-review-refresh
        (qwen-companion-review-file-written (expand-file-name "a.txt"))
        (qwen-companion-review-file-written (expand-file-name "a.txt"))
        (should (= 0 refreshed)))
      (with-current-buffer (qwen-companion-proposal-disk-buffer second)
        (should (equal "two\n" (buffer-string)))
        (should (string-match-p "with the change by qwen" (qwen-companion-test-header)))
        (should buffer-read-only))
      (should (equal '((accepted "two\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-line-ends-on-disk-are-as-they-are ()
  "The user's choice of line ends for the visiting buffer does not matter."
  (pcase-dolist (`(,disk ,named ,shown)
                 '(("one\r\ntwo\r\n" utf-8-unix "one\ntwo\n")
                   ("one\r\ntwo\r\n" utf-8-dos "one\ntwo\n")
                   ("one\r\ntwo\n" utf-8-dos "one\r\ntwo\n")
                   ("one\ntwo\n" utf-8-dos "one\ntwo\n")))
    (qwen-companion-test-with-proposals `(("a.txt" ,disk))
      (let ((coding-system-for-read named))
        (find-file-noselect "a.txt"))
      (let ((proposal (qwen-companion-test-propose "a.txt" "three\r\n")))
        (qwen-companion-proposal-test--prepare proposal)
        (should (equal shown
                       (qwen-companion-proposal-test--on-disk proposal)))))))

(ert-deftest qwen-companion-proposal-test-keeps-the-text-that-nobody-got ()
  "The CLI disconnects, perhaps before it gets the accepted text, or the mode goes off."
  (pcase-dolist (`(,edits ,end ,kept ,outcomes)
                 '(("" qwen-companion-test-orphan ("two\n") nil)
                   ("mine\n" (lambda (proposal)
                               (qwen-companion-diff-accept)
                               (qwen-companion-test-orphan proposal))
                    ("two\nmine\n") ((accepted "two\nmine\n")))
                   ("" (lambda (_) (qwen-companion-proposal-end-all)) nil nil)
                   ("mine\n" (lambda (_) (qwen-companion-proposal-end-all)) ("two\nmine\n") nil)))
    (ert-info ((format "%S %S" edits end))
      (qwen-companion-proposal-test-with-one
        (qwen-companion-test-edit proposal edits)
        (funcall end proposal)
        (should (equal kept (qwen-companion-proposal-test--kept)))
        (should (equal outcomes (qwen-companion-test-outcomes)))
        (should-not (qwen-companion-proposals))))))

(ert-deftest qwen-companion-proposal-test-exit-asks-about-edited-texts ()
  "Emacs offers to save edits and kept texts before it exits, no others."
  (qwen-companion-test-with-proposals '(("a.py" "one\n") ("b.py" "one\n") ("c.py" "one\n"))
    (let ((edited (qwen-companion-test-propose "a.py" "two\n"))
          (plain (qwen-companion-test-propose "b.py" "two\n"))
          (orphan (qwen-companion-test-propose "c.py" "two\n")))
      (mapc #'qwen-companion-proposal-test--prepare (list edited plain))
      (qwen-companion-test-edit edited "mine\n")
      (qwen-companion-test-orphan orphan)
      (let (asked)
        (cl-letf (((symbol-function 'map-y-or-n-p)
                   (lambda (prompter _actor buffers &rest _)
                     (setq asked (cl-remove-if-not prompter buffers))
                     0)))
          (save-some-buffers nil t))
        (should (equal (sort (mapcar #'qwen-companion-proposal-buffer (list edited orphan))
                             #'qwen-companion-proposal-test--before-p)
                       (sort asked #'qwen-companion-proposal-test--before-p)))))))

(defun qwen-companion-proposal-test--before-p (a b)
  "Return non-nil when the name of the buffer A comes before that of B."
  (string< (buffer-name a) (buffer-name b)))

(ert-deftest qwen-companion-proposal-test-undelivered-outcome-is-sent-again ()
  "A new process gets the outcomes that the previous one may have lost."
  (qwen-companion-proposal-test-with-one
    (qwen-companion-diff-accept)
    (should (equal (list (list :id (qwen-companion-proposal-id proposal)
                               :session "session-1"
                               :path (expand-file-name "a.txt")
                               :digest (secure-hash 'sha256 "two\n")))
                   (qwen-companion-proposal-snapshot)))
    (qwen-companion-proposal-resend)
    (should (equal '((accepted "two\n") (accepted "two\n")) (qwen-companion-test-outcomes)))
    (qwen-companion-test-deliver proposal)
    (should-not (qwen-companion-proposal-snapshot))
    (qwen-companion-proposal-resend)
    (should (= 2 (length (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-texts-round-trip ()
  "The accepted text equals the proposed one, byte for byte."
  (dolist (text '("" "x" "x\n" "a\r\nb\r\n" "a\r\nb\n" "a\r\n\r\nb" "\r\r\n"
                  "\n\r\n" "é😀\n" "%s %d ~a\n" "tab\there\n" "\f\n"
                  "\u2028\u200f\n" "nul\0nul\n"
                  "é\r\n😀\r\n\ufeff\r\n" "\ufeffa\rb\r\n\r\r\n" "中\r\n\0\r\n"))
    (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
      (qwen-companion-test-propose "a.txt" text)
      (qwen-companion-diff-accept)
      (should (equal (list (list 'accepted text)) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-long-text-travels-by-private-file ()
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((text (concat (make-string 70000 ?x) "é\r\n")))
      (qwen-companion-test-propose "a.txt" text)
      (qwen-companion-diff-accept)
      (let ((outcome (car (qwen-companion-test-sent 'outcome))))
        (should (= #o600 (file-modes (plist-get outcome :text-file))))
        (should (equal text (qwen-companion-test-text-in outcome)))))))

(ert-deftest qwen-companion-proposal-test-long-text-comes-exactly ()
  "Neither way of reading it takes anything in it for a sign of its coding."
  (qwen-companion-test-with-proposals nil
    (dolist (text '("\ufeffone\r\ntwo\n\0 \e$B#1\e(B -*- coding: latin-1 -*-"
                    "plain\r\n\0\e$B#1\e(B\n\C-l~{+{I~}"
                    "é\u0301中😀\U0010ffff\ufffd\u202e\r"))
      (dolist (kind '("ascii" "utf-8"))
        (let ((file (expand-file-name (concat kind "-0") (qwen-companion-backend-spool))))
          (qwen-companion-test-write file text)
          (with-temp-buffer
            (insert "<>")
            (backward-char)
            (qwen-companion-spool-insert (list :text-file file))
            (should (equal (concat "<" text ">") (buffer-string)))
            (should enable-multibyte-characters)
            (should (= 2 (point))))
          (should-not (file-exists-p file)))))))

(ert-deftest qwen-companion-proposal-test-long-text-with-carriage-returns ()
  "Emacs is told that all lines end in CR LF, and sends them as they came.
That saves looking at each line, most of a second for 20 MB."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (pcase-dolist (`(,kind ,text ,bom ,shown)
                   '(("ascii-crlf" "one\r\n\r\r\n\0\e$B#1\e(B\rtwo" "" "one\n\r\n\0\e$B#1\e(B\rtwo")
                     ("utf-8-crlf" "\ufeffé\u0301\r\n😀\U0010ffff\ufffd\r\n" "\ufeff"
                      "é\u0301\n😀\U0010ffff\ufffd\n")))
      (let ((file (expand-file-name (concat kind "-0") (qwen-companion-backend-spool)))
            (inhibit-eol-conversion t)
            looked)
        (qwen-companion-test-write file text)
        ;; Elsewhere it comes exactly.
        (copy-file file (concat file "1"))
        (should (equal text (qwen-companion-spool-text (list :text-file (concat file "1")))))
        (cl-letf (((symbol-function 'qwen-companion-disk-line-end)
                   (lambda () (setq looked t) nil)))
          (qwen-companion-proposal-test--open "a.txt" :id kind :digest "d" :text-file file))
        (should-not looked)
        (should-not (file-exists-p file))
        (let ((proposal (qwen-companion-proposal-by-id kind)))
          (should (equal (cons "\r\n" bom) (qwen-companion-proposal-proposed proposal)))
          (should (equal text (qwen-companion-proposal-text proposal)))
          (with-current-buffer (qwen-companion-proposal-buffer proposal)
            (should (equal shown (buffer-string)))
            (should (eq (default-value 'buffer-file-coding-system) buffer-file-coding-system))
            (should-not (buffer-modified-p)))
          (qwen-companion-diff-reject))))))

(ert-deftest qwen-companion-proposal-test-carriage-returns-are-not-handled-one-by-one ()
  "Opening a review of 20 MB took half a second, and accepting it as much."
  (pcase-dolist (`(,disk ,proposed)
                 '(("one\r\ntwo\r\n" "one\r\n2\r\n")
                   ("\ufeffcaf\u00e9\r\n" "\ufeffcaf\u00e9\r\n2\r\n")))
    (qwen-companion-test-with-proposals `(("a.txt" ,disk))
      (let ((proposal (qwen-companion-test-propose "a.txt" proposed)))
        (cl-letf (((symbol-function 'qwen-companion-disk-line-end)
                   (lambda () (error "Looked at each line")))
                  ((symbol-function 'qwen-companion-disk-convert-line-ends)
                   (lambda (_) (error "Converted each line")))
                  ((symbol-function 'qwen-companion-disk-set-line-ends)
                   (lambda (text line-end)
                     (should (equal line-end "\n"))
                     text)))
          (qwen-companion-proposal-test--prepare proposal)
          (should-not (qwen-companion-proposal-exact proposal))
          (qwen-companion-diff-accept proposal))
        (should (equal (list (list 'accepted proposed)) (qwen-companion-test-outcomes)))
        ;; What the CLI writes is recognised.
        (qwen-companion-test-write "a.txt" proposed)
        (qwen-companion-test-disk-event (expand-file-name "a.txt"))
        (should (qwen-companion-test-written-p))))))

(ert-deftest qwen-companion-proposal-test-emptied-text-is-refused ()
  "The CLI would write its own text instead, so nothing is sent; nor are bytes that are no text."
  (qwen-companion-proposal-test-with-one
    (dolist (odd (list (string-to-multibyte "\300") (string #xD800)))
      (qwen-companion-test-edit proposal odd)
      (qwen-companion-test-refused "Character 5" (qwen-companion-diff-accept))
      (qwen-companion-test-editing proposal (delete-region 5 (point-max))))
    (qwen-companion-test-editing proposal (erase-buffer))
    (qwen-companion-test-refused "M-x qwen-companion-diff-empty" (qwen-companion-diff-accept))
    (should-not (qwen-companion-test-outcomes))
    (should (qwen-companion-proposals))))

(ert-deftest qwen-companion-proposal-test-emptying-the-file-instead ()
  "The way out: rejected, and the file's buffer is empty but not saved."
  (dolist (name '("a.txt" "new/b.txt"))
    (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
      (qwen-companion-test-propose name "two\n")
      (save-window-excursion
        (qwen-companion-diff-empty)
        (should (equal (expand-file-name name directory) buffer-file-name))
        (should (zerop (buffer-size)))
        (should (buffer-modified-p)))
      (should (equal '((rejected nil)) (qwen-companion-test-outcomes)))
      (should (equal "one\n" (qwen-companion-test-file-text "a.txt"))))))

(ert-deftest qwen-companion-proposal-test-names-and-texts-from-elsewhere-are-refused ()
  "Remote and relative names, and texts outside of the spool."
  (qwen-companion-test-with-proposals '(("secret" "secret\n"))
    (should-error (qwen-companion-proposal-test--open "a.txt" :text-file (expand-file-name "secret")))
    (should (file-exists-p "secret"))
    (dolist (path '("a.txt" "/ssh:host:/etc/passwd"))
      (should (stringp (qwen-companion-proposal-test--open "a.txt" :path path :text "x"))))
    (should-not (qwen-companion-proposals))))

(defun qwen-companion-proposal-test--shown (file)
  "Let a CLI propose a change of FILE; return the messages and the screen text.
That is a list: the announcement, the header lines of both sides, and
that of the unified review."
  (let* ((qwen-companion-diff-style nil)
         proposal
         (said (qwen-companion-test-messages
                 (setq proposal (qwen-companion-test-propose file "two\n")))))
    (qwen-companion-proposal-test--prepare proposal)
    (prog1 (list said
                 (qwen-companion-test-header (qwen-companion-proposal-disk-buffer proposal))
                 (qwen-companion-proposal-test--header proposal)
                 (with-current-buffer (qwen-companion-review-unified--make-buffer proposal)
                   (let ((inhibit-read-only t))
                     (qwen-companion-review-unified--draw-file)
                     (prog1 (concat (qwen-companion-test-header) (buffer-string))
                       (setq kill-buffer-hook nil)
                       (kill-buffer)))))
      (qwen-companion-diff-reject proposal))))

(ert-deftest qwen-companion-proposal-test-files-that-make-the-machine-run-something ()
  "They carry a warning wherever they are shown; harmless look-alikes do not."
  (qwen-companion-test-with-proposals '((".git/config" "[core]\n"))
    (pcase-dolist (`(,file ,who)
                   '((".git/config" "git") (".git/hooks/pre-commit" "git")
                     ("module/.git/hooks/post-checkout" "git")
                     (".GIT/hooks/pre-push" "git")
                     (".envrc" "direnv") ("below/.dir-locals.el" "Emacs")
                     (".vscode/tasks.json" "VS Code")
                     (".bashrc" "shell") (".config/fish/config.fish" "shell")
                     (".qwen/settings.json" "Qwen Code")
                     (".ssh/config" "ssh")))
      (dolist (shown (qwen-companion-proposal-test--shown file))
        (should (string-match-p (format "can run code (%s)" who) shown))))
    (dolist (file '("config" "src/hooks/pre-commit" "git/config" "a.bashrc"
                    "envrc" ".gitignore" "settings.json" "vscode/tasks.json"))
      (dolist (shown (qwen-companion-proposal-test--shown file))
        (should-not (string-match-p "can run code" shown))))))

(ert-deftest qwen-companion-proposal-test-a-link-out-of-the-root ()
  "It is shown under its real path, with a warning that judges that path too."
  (qwen-companion-test-with-proposals '(("root/a.txt" "one\n") ("outside/.profile" "one\n")
                                        ("outside/a.txt" "one\n"))
    (qwen-companion-test-with-roots (list (expand-file-name "root"))
      (let ((root (expand-file-name "root"))
            (profile (expand-file-name "outside/.profile")))
        (make-directory "root/.git")
        (make-symbolic-link profile "root/notes.txt")
        (make-symbolic-link (expand-file-name "outside") "root/directory")
        (make-symbolic-link "a.txt" "root/inside.txt")
        (make-symbolic-link root "by-another-name")
        (dolist (shown (qwen-companion-proposal-test--shown "root/notes.txt"))
          (should (string-match-p (regexp-quote profile) shown))
          (should (string-match-p "a link out of the workspace" shown))
          (should (string-match-p "can run code (shell)" shown)))
        (dolist (file '("root/directory/a.txt" "root/directory/new.txt"))
          (dolist (shown (qwen-companion-proposal-test--shown file))
            (should (string-match-p
                     (regexp-quote (expand-file-name (file-name-nondirectory file) "outside"))
                     shown))
            (should (string-match-p "a link out of the workspace" shown))))
        ;; Inside, it counts where that makes a difference.
        (make-symbolic-link ".git/hooks/pre-commit" "root/hook.txt")
        (dolist (shown (qwen-companion-proposal-test--shown "root/hook.txt"))
          (should (string-match-p "can run code (git); a link to " shown))
          (should (string-match-p "root/\\.git/hooks/pre-commit" shown)))
        (dolist (file '("root/inside.txt" "root/a.txt" "root/new.txt" "by-another-name/a.txt"))
          (dolist (shown (qwen-companion-proposal-test--shown file))
            (should-not (string-match-p "a link" shown))))))))

(ert-deftest qwen-companion-proposal-test-becomes-a-link-out-of-the-root ()
  "The header names it, and the first acceptance after that is refused."
  (dolist (text '("one\n" "other\n"))
    (qwen-companion-test-with-proposals `(("root/sub/a.txt" "one\n") ("outside/a.txt" ,text))
      (qwen-companion-test-with-roots (list (expand-file-name "root"))
        (let* ((outside (expand-file-name "outside/a.txt"))
               (proposal (qwen-companion-test-propose "root/sub/a.txt" "two\n")))
          (setf (qwen-companion-proposal-style proposal) 'unified)
          (qwen-companion-proposal-test--prepare proposal)
          (should-not (string-search "a link" (qwen-companion-proposal-test--header proposal)))
          ;; Of the directory nothing is told, and the file may have the same stamp.
          (rename-file "root/sub" "root/old")
          (make-symbolic-link (expand-file-name "outside") "root/sub")
          (qwen-companion-test-refused (regexp-quote (concat "a link out of the workspace to " outside))
            (qwen-companion-diff-accept proposal))
          (should (string-search (concat "a link out of the workspace to " outside)
                                 (qwen-companion-proposal-test--header proposal)))
          (should (string-search (concat " " outside ": proposed") (qwen-companion-proposal-test--header proposal)))
          (qwen-companion-proposal-test--accept-if proposal (equal text "one\n")))))))

(ert-deftest qwen-companion-proposal-test-a-link-is-noticed-by-itself ()
  "The review names it at once; the first acceptance is refused all the same."
  (dolist (text '("one\n" "other\n"))
    (qwen-companion-test-with-proposals `(("root/a.txt" "one\n") ("outside/.profile" ,text))
      (qwen-companion-test-with-roots (list (expand-file-name "root"))
        (let ((proposal (qwen-companion-test-propose "root/a.txt" "two\n"))
              (said "can run code (shell); a link out of the workspace to "))
          (setf (qwen-companion-proposal-style proposal) 'unified)
          (qwen-companion-proposal-test--prepare proposal)
          (rename-file "root/a.txt" "root/old.txt")
          (make-symbolic-link (expand-file-name "outside/.profile") "root/a.txt")
          (qwen-companion-test-wait-for
           (string-search said (qwen-companion-proposal-test--header proposal)))
          (qwen-companion-test-refused (regexp-quote said) (qwen-companion-diff-accept proposal))
          (qwen-companion-proposal-test--accept-if proposal (equal text "one\n")))))))

(defun qwen-companion-proposal-test--accept-if (proposal same)
  "Check that PROPOSAL is accepted now if SAME, else that another text is merged."
  (if same
      (qwen-companion-diff-accept proposal)
    (qwen-companion-test-refused "merging it, then accept again" (qwen-companion-diff-accept proposal)))
  (should (equal (and same '((accepted "two\n"))) (qwen-companion-test-outcomes))))

(ert-deftest qwen-companion-proposal-test-states-of-the-file-on-disk ()
  "Deleted, a directory, or already as proposed: each in its own words."
  (pcase-dolist (`(,change ,note ,side ,refusal)
                 (list (list (lambda () (delete-file "a.txt"))
                             "deleted since" "deleted from disk"
                             "a\\.txt was deleted or renamed after the proposal")
                       (list (lambda () (rename-file "a.txt" "b.txt"))
                             "deleted since" "deleted from disk"
                             "a\\.txt was deleted or renamed after the proposal")
                       (list (lambda () (delete-file "a.txt") (make-directory "a.txt"))
                             "a directory since" "a directory on disk"
                             "a\\.txt has become a directory")
                       (list (lambda () (qwen-companion-test-write "a.txt" "two\n" 2))
                             nil "on disk, as proposed" nil)))
    (dolist (shown '(before after nil))
      (qwen-companion-proposal-test-with-one
        (setf (qwen-companion-proposal-style proposal) 'unified)
        (when (eq shown 'before)
          (qwen-companion-proposal-test--prepare proposal))
        (funcall change)
        (when (eq shown 'after)
          (qwen-companion-proposal-test--prepare proposal))
        (when shown
          (qwen-companion-test-wait-for
           (string-search side (qwen-companion-proposal-test--header proposal t)))
          (should (equal (not note)
                         (not (string-match-p
                               " since" (qwen-companion-proposal-test--header proposal)))))
          (when note
            (should (string-search note (qwen-companion-proposal-test--header proposal)))))
        ;; What is shown so from the beginning was seen.
        (when (and refusal (not (eq shown 'after)))
          (qwen-companion-test-refused refusal (qwen-companion-diff-accept proposal)))
        (qwen-companion-diff-accept proposal)
        (should (equal '((accepted "two\n")) (qwen-companion-test-outcomes)))))))

(ert-deftest qwen-companion-proposal-test-a-link-where-no-root-is-known ()
  (qwen-companion-test-with-proposals '(("elsewhere/a.txt" "one\n"))
    (qwen-companion-test-with-roots nil
      (make-symbolic-link "elsewhere/a.txt" "link.txt")
      (dolist (shown (qwen-companion-proposal-test--shown "link.txt"))
        (should (string-match-p
                 (concat "a link out of the workspace to "
                         (regexp-quote (expand-file-name "elsewhere/a.txt")))
                 shown))))))

(ert-deftest qwen-companion-proposal-test-invisible-characters-in-names-are-shown ()
  "It is written out, and that is said."
  (qwen-companion-test-with-proposals '(("plain.txt" "one\n"))
    (pcase-dolist (`(,file ,written)
                   '(("a\nb.txt" "a\\nb.txt") ("a\e[31mb.txt" "a\\u001B[31mb.txt")
                     ("a\u202Etxt.exe" "a\\u202Etxt.exe")))
      (dolist (shown (qwen-companion-proposal-test--shown file))
        (should (string-match-p (regexp-quote written) shown))
        (should (string-match-p "its name has invisible characters" shown))
        (should-not (string-match-p (regexp-quote file) shown))))
    (dolist (shown (qwen-companion-proposal-test--shown "plain.txt"))
      (should-not (string-match-p "cannot be seen" shown)))))

(defvar python-mode-hook)
(defvar qwen-companion-proposal-test--hook-ran nil)

(ert-deftest qwen-companion-proposal-test-hostile-text-does-nothing ()
  "No mode, variable, hook or mode line construct comes from the text."
  (qwen-companion-test-with-proposals '(("a.py" "x = 1\n"))
    (let* ((qwen-companion-proposal-test--hook-ran nil)
           (python-mode-hook (list (lambda () (setq qwen-companion-proposal-test--hook-ran t))))
           (proposal
            (qwen-companion-test-propose
             "a.py"
             (concat "# -*- mode: emacs-lisp; eval: (setq"
                     " qwen-companion-proposal-test--hook-ran t) -*-\n"
                     "# Local " "Variables:\n# fill-column: 7\n# End:\n"))))
      (qwen-companion-proposal-test--prepare proposal)
      (dolist (buffer (list (qwen-companion-proposal-buffer proposal)
                            (qwen-companion-proposal-disk-buffer proposal)))
        (with-current-buffer buffer
          (should (eq 'python-mode major-mode))
          (should-not (= 7 fill-column))
          (should-not buffer-file-name)))
      (should-not qwen-companion-proposal-test--hook-ran))))

(ert-deftest qwen-companion-proposal-test-no-mode-runs-a-hook-of-the-user ()
  "Not those either that a mode runs by itself, nor those of languages in the text."
  (require 'mhtml-mode)
  (let* (ran
         (note (lambda (name) (list (lambda () (push name ran)))))
         (hooks '(html-mode-hook prog-mode-hook text-mode-hook js-mode-hook css-mode-hook
                                 sh-set-shell-hook c-initialization-hook org-mode-hook python-mode-hook
                                 font-lock-mode-hook hack-local-variables-hook after-change-major-mode-hook
                                 change-major-mode-after-body-hook change-major-mode-hook)))
    (pcase-dolist (`(,name ,text ,mode)
                   '(("a.html" "<script>let x = 1</script>" mhtml-mode) ("a.sh" "x=1" sh-mode)
                     ("a.c" "int x;" c-mode)
                     ("a.org" "#+begin_src python\nx = 1\n#+end_src" org-mode)))
      (qwen-companion-test-with-proposals `((,name ,(concat text "\n")))
        (let ((proposal (qwen-companion-test-propose name (concat text " \n"))))
          (cl-progv hooks (mapcar note hooks)
            (qwen-companion-proposal-test--prepare proposal)
            (dolist (buffer (list (qwen-companion-proposal-buffer proposal)
                                  (qwen-companion-proposal-disk-buffer proposal)))
              (with-current-buffer buffer
                (should (eq mode major-mode))
                (font-lock-ensure)))
            ;; They are there again.
            (should (cl-every #'symbol-value hooks)))
          (should (equal (list name nil) (list name ran))))))))

(ert-deftest qwen-companion-proposal-test-file-names-do-not-reach-the-mode-line ()
  "None is a format string or changes the looks of the text beside it."
  (qwen-companion-test-with-proposals nil
    (let ((proposal (qwen-companion-test-propose "%b%n%s\u202e\n\e[31m.txt" "x\n" :client "%b %d")))
      (qwen-companion-proposal-test--prepare proposal)
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (should (string-match-p (regexp-quote "%%b%%n%%s\\u202E\\n\\u001B[31m.txt")
                                (qwen-companion-test-header)))
        (should (string-match-p "by %%b %%d  " (qwen-companion-test-header)))
        (should (string-match-p (regexp-quote "%b%n%s\\u202E\\n\\u001B[31m.txt") (buffer-name))))
      (qwen-companion-test-edit proposal "mine\n")
      (qwen-companion-test-close proposal)
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (should (string-match-p (regexp-quote "%%b%%n%%s\\u202E") (qwen-companion-test-header)))))))

(ert-deftest qwen-companion-proposal-test-characters-that-reorder-text-are-shown ()
  "Characters that make a line look like another are seen as codes."
  (qwen-companion-test-with-proposals '(("a.py" "x = 1\n") ("b.py" "# \u202e\n"))
    (let ((plain (qwen-companion-test-propose "a.py" "# שלום é\n"))
          (odd (qwen-companion-test-propose "b.py" "x = 1 # \u202e }\u2066 if\n")))
      (mapc #'qwen-companion-proposal-test--prepare (list plain odd))
      (with-current-buffer (qwen-companion-proposal-buffer plain)
        (should-not (local-variable-p 'glyphless-char-display))
        (should-not (string-match-p "U\\+202E" (qwen-companion-test-header))))
      (dolist (buffer (list (qwen-companion-proposal-buffer odd)
                            (qwen-companion-proposal-disk-buffer odd)))
        (with-current-buffer buffer
          ;; Emacs does not support to be without.
          (should bidi-display-reordering)
          (should (eq 'left-to-right bidi-paragraph-direction))
          (should (eq 'hex-code (aref glyphless-char-display #x202e)))
          ;; What is displayed in its place turns nothing around.
          (should (equal "202E" (get-char-property (1+ (cl-position ?\u202e (buffer-string)))
                                                   'display)))
          (should (string-match-p "hidden characters: U\\+202E, line 1; U\\+2066, line 1"
                                  (qwen-companion-test-header)))))
      (qwen-companion-test-editing odd
        (erase-buffer)
        (should-not (string-match-p "U\\+202E" (qwen-companion-test-header))))
      (should-not (eq 'hex-code (aref (default-value 'glyphless-char-display) #x202e))))))

(defconst qwen-companion-proposal-test--ignorable
  '(#xAD #x34F #x61C (#x115F . #x1160) (#x17B4 . #x17B5) (#x180B . #x180F) (#x200B . #x200F)
    (#x202A . #x202E) (#x2060 . #x206F) #x3164 (#xFE00 . #xFE0F) #xFEFF #xFFA0 (#xFFF0 . #xFFF8)
    (#x1BCA0 . #x1BCA3) (#x1D173 . #x1D17A) (#xE0000 . #xE0FFF))
  "The property Default_Ignorable_Code_Point of Unicode 15.")

(defun qwen-companion-proposal-test--hidden-characters ()
  "Return all characters that are not seen, by the tables of Unicode."
  (let ((table (make-char-table 'qwen-companion-test)) characters)
    (map-char-table (lambda (range category)
                      (when (eq 'Cf category)
                        (set-char-table-range table range t)))
                    (unicode-property-table-internal 'general-category))
    (dolist (range (append '(#x2028 #x2029 #x2800) qwen-companion-proposal-test--ignorable))
      (set-char-table-range table range t))
    (map-char-table (lambda (range _)
                      (setq characters (append (if (consp range)
                                                   (number-sequence (car range) (cdr range))
                                                 (list range))
                                               characters)))
                    table)
    characters))

(ert-deftest qwen-companion-proposal-test-hidden-characters-are-shown ()
  "Each is written out in names, and shown and warned of in added lines."
  (let* ((characters (qwen-companion-proposal-test--hidden-characters))
         (text (mapconcat (lambda (character) (string ?a character ?b)) characters "\n")))
    (should (< 4200 (length characters)))
    (dolist (character characters)
      (let ((name (string ?a character ?b)))
        (should (equal (format (if (> character #xFFFF) "a\\U%08Xb" "a\\u%04Xb") character)
                       (qwen-companion-untrusted-text name)))
        (with-temp-buffer
          (insert name)
          (qwen-companion-untrusted-show-hidden)
          (should (equal (format "%04X" character) (get-char-property 2 'display)))
          (should (equal (format "hidden characters: U+%04X, line 1" character)
                         (with-temp-buffer
                           (let ((before (current-buffer)))
                             (with-temp-buffer
                               (insert name)
                               (qwen-companion-untrusted-hidden-warning before)))))))))
    (qwen-companion-test-with-proposals `(("a.txt" ,(concat text "\n")))
      ;; Lines of the file are not added.
      (let ((proposal (qwen-companion-test-propose
                       "a.txt" (concat "one\n" text "\nx\u200B\u200By\u200B\u2060\n"))))
        (qwen-companion-proposal-test--prepare proposal)
        (with-current-buffer (qwen-companion-proposal-buffer proposal)
          (should (string-match-p
                   (format "hidden characters: U\\+200B 3 times, line %d; U\\+2060, line %1$d"
                           (+ 2 (length characters)))
                   (qwen-companion-test-header))))))))

(ert-deftest qwen-companion-proposal-test-hidden-characters-that-a-text-needs ()
  "Emoji and scripts that have joiners are as they are, without a warning."
  (dolist (text '("می\u200cخواهم" "क्\u200dष" "ක්\u200dර" "ភាសា\u200bខ្មែរ" "ᠠ\u180b" "葛\U000E0100"
                  "⚠\ufe0f" "❤\ufe0f\u200d🔥" "👩🏽\u200d💻" "1\ufe0f\u20e3" "©\ufe0f"
                  "🏴\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F"))
    (ert-info (text :prefix "Text: ")
      (should (equal text (qwen-companion-untrusted-text text)))
      (with-temp-buffer
        (let ((before (current-buffer)))
          (with-temp-buffer
            (insert text)
            (qwen-companion-untrusted-show-hidden)
            (should-not (overlays-in (point-min) (point-max)))
            (should-not (qwen-companion-untrusted-hidden-warning before)))))))
  (dolist (text '("x\u200cy" "م\u200cx" "⚠\ufe0f\ufe0f" "👩\u200d\u200d💻" "1\ufe0f" "葛\U000E0100\U000E0101"
                  "🏴\U000E0067\U000E0062\U000E0065\U000E006E\U000E007F" "\u200b" "م\u200c"))
    (ert-info (text :prefix "Text: ")
      (should-not (equal text (qwen-companion-untrusted-text text))))))

(ert-deftest qwen-companion-proposal-test-a-mode-cannot-take-its-time-over-the-text ()
  "A mode starts in an empty buffer; long lines and long texts get no mode."
  (require 'python)
  (qwen-companion-test-with-proposals '(("a.py" "x = 1\n"))
    (let ((text (apply #'concat (cl-loop for i to 9000 collect
                                         (format "def f%d(): return\n" i)))))
      (pcase-dolist (`(,proposed ,mode)
                     (list (list text 'python-mode)
                           (list (concat text text) 'fundamental-mode)
                           (list (make-string 6000 ?x) 'fundamental-mode)))
        (let* ((proposal (qwen-companion-test-propose "a.py" proposed))
               (buffer (qwen-companion-proposal-buffer proposal))
               (seen nil))
          (qwen-companion-test-edit proposal "y = 2\n")
          (cl-letf* ((python (symbol-function 'python-mode))
                     ((symbol-function 'python-mode)
                      (lambda ()
                        (push (buffer-size) seen)
                        (funcall python))))
            (qwen-companion-proposal-test--prepare proposal))
          (with-current-buffer buffer
            (should (eq mode major-mode))
            (should (cl-every #'zerop seen))
            (should (equal (concat proposed "y = 2\n") (buffer-string)))
            (should (qwen-companion-proposal-edited-p proposal))
            (primitive-undo 2 buffer-undo-list)
            (should (equal proposed (buffer-string))))
          (qwen-companion-diff-reject))))))

(ert-deftest qwen-companion-proposal-test-sizes-above-the-limit-are-refused ()
  "A large text or file is refused; the CLI is told to ask in its terminal."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n") ("big.txt" "0123456789\n"))
    (let ((qwen-companion-diff-size-limit 10)
          (spooled (expand-file-name "long" (qwen-companion-backend-spool))))
      (write-region "0123456789\n" nil spooled nil 'silent)
      (pcase-dolist (`(,name . ,text) `(("a.txt" :text "0123456é9\n")
                                        ("a.txt" :text-file ,spooled)
                                        ("big.txt" :text "x")))
        (should (string-match-p "11 bytes.*Decide in the terminal" (apply #'qwen-companion-proposal-test--open name text))))
      (should-not (file-exists-p spooled))
      (should-not (qwen-companion-proposals))
      (should (qwen-companion-test-propose "a.txt" "0123456789")))))

(ert-deftest qwen-companion-proposal-test-only-text-modes ()
  "A name that chooses a mode which acts on its text gets none."
  (should (eq 'python-mode (qwen-companion-untrusted-major-mode "/x/a.py")))
  (should (eq 'emacs-lisp-mode (qwen-companion-untrusted-major-mode "/x/a.el")))
  ;; As a user of Emacs 29 chooses, or Emacs 30 by itself.
  (let ((remapped '((python-mode . conf-mode))))
    (cl-letf (((symbol-function 'major-mode-remap)
               (lambda (mode) (alist-get mode remapped mode))))
      (should (eq 'conf-mode (qwen-companion-untrusted-major-mode "/x/a.py")))))
  (dolist (name '("/x/a.png" "/x/a.tar" "/x/a.zip" "/x/a.pdf" "/x/a.unknown"))
    (should-not (qwen-companion-untrusted-major-mode name))))

;;; Several changes of one file in one message of the model

(defvar qwen-companion-proposal-test--merges nil
  "List of pending merges, (BASE MINE THEIRS CALLBACK), newest first.")

(defmacro qwen-companion-proposal-test-with-merges (files &rest body)
  "Run BODY with FILES; merges wait for an answer of the test.
The wait for a write is short, and its end is no surprise."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-proposals ,files
     (let ((qwen-companion-proposal-test--merges nil)
           (qwen-companion-disk--patience 0.3)
           (qwen-companion-disk-written-functions
            '(qwen-companion-review-file-written qwen-companion-rescue-file-written)))
       (cl-letf (((symbol-function 'qwen-companion-merge-texts)
                  (lambda (base mine theirs labels callback)
                    (should-not labels)
                    (push (list base mine theirs callback)
                          qwen-companion-proposal-test--merges))))
         (save-window-excursion
           ,@body)))))

(defun qwen-companion-proposal-test--answer-merge (result)
  "Let the oldest merge that waits have RESULT, a string, or nil: a conflict."
  (pcase-let ((`(,_ ,_ ,_ ,callback) (car (last qwen-companion-proposal-test--merges))))
    (setq qwen-companion-proposal-test--merges (butlast qwen-companion-proposal-test--merges))
    (funcall callback
             (and result
                  (make-qwen-companion-merge-result
                   :edits [] :text result)))))

(defun qwen-companion-proposal-test--accept (proposal)
  "Accept PROPOSAL and let the CLI know."
  (qwen-companion-diff-accept proposal)
  (qwen-companion-test-deliver proposal))

(defun qwen-companion-proposal-test--settle ()
  "Wait until no write is expected any more."
  (qwen-companion-test-wait-for (qwen-companion-test-written-p))
  (qwen-companion-test-wait-for (null (get-process "qwen-companion-diff"))))

(ert-deftest qwen-companion-proposal-test-two-changes-before-either-is-written ()
  "The second is compared with the text it was made from, and that is said.
The CLI writes both one after the other, and nothing is amiss."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n2\n"))
    (let ((first (qwen-companion-test-propose "a.txt" "ONE\n2\n")) second said)
      (setq said
            (qwen-companion-test-messages
              (qwen-companion-proposal-test--accept first)
              (setq second (qwen-companion-test-propose "a.txt" "1\nTWO\n"))
              ;; The CLI writes nothing before it has all answers.
              (sit-for 0.5)
              (qwen-companion-proposal-test--answer-merge "ONE\nTWO\n")
              (qwen-companion-proposal-test--prepare second)
              (should (equal "1\n2\n" (qwen-companion-proposal-test--on-disk second)))
              (should (qwen-companion-test-header-p "a\\.txt.*  lacks accepted changes" (qwen-companion-proposal-buffer second)))
              (qwen-companion-proposal-test--accept second)
              (should (equal '("1\n2\n" "ONE\n2\n" "1\nTWO\n")
                             (butlast (car qwen-companion-proposal-test--merges))))
              (qwen-companion-proposal-test--answer-merge "ONE\nTWO\n")
              (qwen-companion-test-write "a.txt" "ONE\n2\n" 2)
              (qwen-companion-test-write "a.txt" "ONE\nTWO\n" 2)
              (qwen-companion-proposal-test--settle)))
      (should-not (string-match-p "hold\\|not written\\|kept" said))
      (should-not (qwen-companion-proposal-test--kept))
      ;; What was sent is what was shown.
      (should (equal '((accepted "ONE\n2\n") (accepted "1\nTWO\n"))
                     (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-three-changes-in-any-order-of-merges ()
  "The future text of the file is computed in order, also when merges are slow."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n2\n3\n"))
    (should-not
     (string-match-p
      "hold\\|not written\\|kept"
      (qwen-companion-test-messages
        (dolist (text '("ONE\n2\n3\n" "1\nTWO\n3\n" "1\n2\nTHREE\n"))
          (qwen-companion-proposal-test--accept (qwen-companion-test-propose "a.txt" text)))
        ;; What it was compared with when it came.
        (qwen-companion-proposal-test--answer-merge nil)
        (should (= 1 (length qwen-companion-proposal-test--merges)))
        (qwen-companion-test-write "a.txt" "ONE\nTWO\nTHREE\n" 2)
        (qwen-companion-proposal-test--answer-merge "ONE\nTWO\n3\n")
        (should (equal '("1\n2\n3\n" "ONE\nTWO\n3\n" "1\n2\nTHREE\n")
                       (butlast (car qwen-companion-proposal-test--merges))))
        (qwen-companion-proposal-test--answer-merge "ONE\nTWO\nTHREE\n")
        (qwen-companion-proposal-test--settle))))
    (should-not (qwen-companion-proposal-test--kept))))

(ert-deftest qwen-companion-proposal-test-the-second-change-fails-with-edits ()
  "A warning says so before; afterwards the text is kept beside the first one."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n2\n"))
    (qwen-companion-proposal-test--accept (qwen-companion-test-propose "a.txt" "ONE\n2\n"))
    (let ((second (qwen-companion-test-propose "a.txt" "1\nTWO\n")))
      (qwen-companion-proposal-test--answer-merge "ONE\nTWO\n")
      (qwen-companion-proposal-test--prepare second)
      (qwen-companion-test-edit second "mine\n")
      (should (qwen-companion-test-header-p "a\\.txt.*  edited by you.*  qwen may fail to write your edits  " (qwen-companion-proposal-buffer second)))
      (qwen-companion-test-said "a\\.txt has the change accepted before, but not this one; .*kept"
        (qwen-companion-proposal-test--accept second)
        (qwen-companion-proposal-test--answer-merge "ONE\nTWO\nmine\n")
        (qwen-companion-test-write "a.txt" "ONE\n2\n" 2)
        (qwen-companion-proposal-test--settle))
      (should (equal '("ONE\nTWO\nmine\n") (qwen-companion-proposal-test--kept))))))

(ert-deftest qwen-companion-proposal-test-a-whole-text-replaces-the-one-before ()
  "Only edits of the earlier text are kept: the user accepted its replacement."
  (dolist (edits '("" "mine\n"))
    (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n"))
      (let ((first (qwen-companion-test-propose "a.txt" "2\n")) second)
        (qwen-companion-test-edit first edits)
        (qwen-companion-proposal-test--accept first)
        (setq second (qwen-companion-test-propose "a.txt" "3\n"))
        (qwen-companion-proposal-test--answer-merge nil)
        (qwen-companion-proposal-test--prepare second)
        (should (eq (string-empty-p edits)
                    (not (qwen-companion-test-header-p "and qwen may fail to write it where you edited them" (qwen-companion-proposal-buffer second)))))
        (qwen-companion-proposal-test--accept second)
        (qwen-companion-proposal-test--answer-merge nil)
        (qwen-companion-test-write "a.txt" "3\n" 2)
        (qwen-companion-proposal-test--settle)
        (should (equal (if (string-empty-p edits) nil '("2\nmine\n"))
                       (qwen-companion-proposal-test--kept)))))))

(ert-deftest qwen-companion-proposal-test-a-text-with-the-change-before-lacks-nothing ()
  (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n2\n"))
    (qwen-companion-proposal-test--accept (qwen-companion-test-propose "a.txt" "ONE\n2\n"))
    (let ((second (qwen-companion-test-propose "a.txt" "ONE\nTWO\n")))
      (qwen-companion-proposal-test--answer-merge "ONE\nTWO\n")
      (should-not (qwen-companion-proposal-note second)))))

(ert-deftest qwen-companion-proposal-test-a-cli-that-waits-for-answers-is-given-time ()
  "Its time begins when it has the last one, also about another file."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "1\n") ("b.txt" "1\n"))
    (let ((first (qwen-companion-test-propose "a.txt" "2\n")) second)
      (qwen-companion-test-silent
        (let ((inhibit-message t))
          (cl-letf (((symbol-function 'qwen-companion-review--announce) #'ignore)
                    ((symbol-function 'qwen-companion-proposal-display-path)
                     (lambda (_) "a file")))
            (qwen-companion-proposal-decide first 'accepted "2\n")
            (qwen-companion-test-deliver first)
            (setq second (qwen-companion-test-propose "b.txt" "2\n"))
            (sit-for 0.8))))
      (should-not (qwen-companion-test-written-p))
      (qwen-companion-diff-reject second)
      (qwen-companion-test-said "qwen has not written"
        (qwen-companion-test-deliver second)
        (qwen-companion-proposal-test--settle)))))

;;; What is said is true

(ert-deftest qwen-companion-proposal-test-a-cli-that-ends-the-last-line ()
  "Gemini CLI adds a line end where the accepted text has none."
  (dolist (text '("two" "one\r\ntwo"))
    (dolist (close '(nil t))
      (qwen-companion-proposal-test-with-merges '(("a.txt" "one\n"))
        (let* ((proposal (qwen-companion-test-propose "a.txt" text :ends-lines t))
               (said (qwen-companion-test-messages
                       (if close
                           (progn
                             (qwen-companion-test-edit proposal "!")
                             (qwen-companion-test-close proposal :keeps-edits t))
                         (qwen-companion-proposal-test--accept proposal))
                       (qwen-companion-test-write "a.txt"
                                                  (concat text (if close "!" "")
                                                          (if (string-search "\r" text) "\r\n" "\n")))
                       (qwen-companion-proposal-test--settle))))
          (should-not (string-match-p "not hold\\|not in it" said))
          (should-not (qwen-companion-proposal-test--kept)))))))

(ert-deftest qwen-companion-proposal-test-missing-edits-are-said-once-and-when-true ()
  "No message while the CLI is still writing, and none at later writes."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-edit proposal "mine\n")
      (qwen-companion-test-silent
        (cl-letf (((symbol-function 'qwen-companion-rescue-adopt)
                   (let ((keep (symbol-function 'qwen-companion-rescue-adopt)))
                     (lambda (&rest arguments)
                       (let (said)
                         (setq said (qwen-companion-test-messages
                                      (apply keep arguments)))
                         (should (string-match-p "kept in" said)))))))
          (qwen-companion-test-close proposal))
        (qwen-companion-test-write "a.txt" "" 2)
        (qwen-companion-test-disk-event (expand-file-name "a.txt")))
      (let ((said (qwen-companion-test-messages
                    (qwen-companion-test-write "a.txt" "two\n" 2)
                    (qwen-companion-proposal-test--settle))))
        (should (string-match-p "was written without your edits" said))
        (should (= 1 (length (split-string said "\n")))))
      ;; A newer proposal is accepted without edits and written.
      (should-not (string-match-p
                   "your edits"
                   (qwen-companion-test-messages
                     (qwen-companion-proposal-test--accept
                      (qwen-companion-test-propose "a.txt" "three\n"))
                     (qwen-companion-test-write "a.txt" "three\n" 2)
                     (qwen-companion-proposal-test--settle))))
      (should (equal '("two\nmine\n") (qwen-companion-proposal-test--kept))))))

(ert-deftest qwen-companion-proposal-test-answered-with-no-in-the-terminal ()
  "Nothing was written, so no message mentions a write."
  (qwen-companion-proposal-test-with-merges '(("a.txt" "one\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n")))
      (qwen-companion-test-edit proposal "mine\n")
      (qwen-companion-test-close proposal)
      (qwen-companion-test-silent (qwen-companion-proposal-test--settle))
      (should (equal '("two\nmine\n") (qwen-companion-proposal-test--kept))))))

(ert-deftest qwen-companion-proposal-test-text-equal-to-the-disk-is-not-kept ()
  "A text that equals the file is not kept, in whatever way the review ends."
  (dolist (end (list #'qwen-companion-proposal-on-close #'qwen-companion-proposal-on-orphan
                     (lambda (_) (qwen-companion-proposal-end-all))
                     (lambda (_) (qwen-companion-test-propose "a.txt" "three\n"))))
    (qwen-companion-test-with-proposals '(("a.txt" "one\r\n"))
      (let ((proposal (qwen-companion-test-propose "a.txt" "two\r\n")))
        (with-current-buffer (qwen-companion-proposal-buffer proposal)
          (erase-buffer)
          (insert "one\n"))
        (funcall end (list :id (qwen-companion-proposal-id proposal)))
        (should-not (buffer-live-p (qwen-companion-proposal-buffer proposal)))
        (should-not (qwen-companion-proposal-test--kept))))))

;;; The disk side

(ert-deftest qwen-companion-proposal-test-the-disk-side-follows-a-file-nobody-visits ()
  ;; A new time alone overwrites nothing.
  (qwen-companion-proposal-test-with-one
    (qwen-companion-proposal-test--prepare proposal)
    (set-file-times "a.txt" (time-add nil 5))
    (qwen-companion-diff-accept proposal)
    (should-not (file-notify-valid-p (qwen-companion-proposal-watch proposal))))
  (qwen-companion-proposal-test-with-one
    (qwen-companion-proposal-test--prepare proposal)
    (qwen-companion-test-counting refreshed 'qwen-companion-review-refresh
      ;; Letters in another case are a change.
      (let ((case-fold-search t))
        (qwen-companion-test-write "a.txt" "ONE\n" 2)
        (qwen-companion-test-wait-for (equal "ONE\n" (qwen-companion-proposal-test--on-disk proposal))))
      (should (> refreshed 0)))
    (should (qwen-companion-test-header-p "changed since" (qwen-companion-proposal-buffer proposal)))))

;;; What was written under a review

(defmacro qwen-companion-proposal-test-with-written (proposed written shown &rest body)
  "Run BODY where WRITTEN was saved after a CLI proposed PROPOSED; `proposal'.
SHOWN is when the review was shown: `before' that, `after' it, or nil."
  (declare (indent 3) (debug t))
  `(qwen-companion-test-with-proposals '(("a.txt" "1\n2\n3\n4\n5\n6\n7\n"))
     (cl-letf (((symbol-function 'qwen-companion-merge-texts) #'qwen-companion-test-merge-now))
       (let ((proposal (qwen-companion-test-propose "a.txt" ,proposed)))
         (setf (qwen-companion-proposal-style proposal) 'unified)
         (when (eq ,shown 'before)
           (qwen-companion-proposal-test--prepare proposal))
         (qwen-companion-test-write "a.txt" ,written 2)
         (when (eq ,shown 'after)
           (qwen-companion-proposal-test--prepare proposal))
         (when ,shown
           (qwen-companion-test-wait-for (equal ,written (qwen-companion-proposal-test--on-disk proposal))))
         ,@body))))

(ert-deftest qwen-companion-proposal-test-text-written-since-is-merged ()
  "The review shows that, so one key accepts it; unseen, the first one is refused."
  (dolist (shown '(before after nil))
    (qwen-companion-proposal-test-with-written "ONE\n2\n3\n4\n5\n6\n7\n" "1\n2\n3\n4\n5\n6\nmine\n" shown
      (if shown
          (should (string-search "merged with later writes"
                                 (qwen-companion-proposal-test--header proposal)))
        (qwen-companion-test-refused "a\\.txt changed on disk after it was proposed"
          (qwen-companion-diff-accept proposal))
        (should-not (qwen-companion-test-outcomes)))
      (qwen-companion-diff-accept proposal)
      (should (equal '((accepted "ONE\n2\n3\n4\n5\n6\nmine\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-each-text-written-since-is-merged ()
  "Emacs saves again and again while a review waits."
  (qwen-companion-proposal-test-with-written "ONE\n2\n3\n4\n5\n6\n7\n" "1\n2\n3\n4\n5\n6\nm\n" 'before
    (qwen-companion-test-write "a.txt" "1\n2\n3\n4\n5\n6\nmine\n" 4)
    (qwen-companion-review-file-written (expand-file-name "a.txt"))
    (qwen-companion-diff-accept proposal)
    (should (equal '((accepted "ONE\n2\n3\n4\n5\n6\nmine\n")) (qwen-companion-test-outcomes)))))

(ert-deftest qwen-companion-proposal-test-the-same-lines-were-written-since ()
  "Accepting marks the conflict; no further key overwrites the file."
  (dolist (shown '(before after nil))
    (qwen-companion-proposal-test-with-written "ONE\n2\n3\n4\n5\n6\n7\n" "mine\n2\n3\n4\n5\n6\n7\n" shown
      (when shown
        (should (string-search "same lines changed since" (qwen-companion-proposal-test--header proposal))))
      (let ((before (qwen-companion-proposal-text proposal)))
        (should (equal "ONE\n2\n3\n4\n5\n6\n7\n" before)))
      (qwen-companion-test-refused "changed on disk after it was proposed" (qwen-companion-diff-accept proposal))
      (when shown
        (should (string-search "1 conflict" (qwen-companion-proposal-test--header proposal))))
      (should (string-prefix-p "<<<<<<< proposed\nONE\n||||||| before\n1\n=======\nmine\n>>>>>>> on disk\n"
                               (qwen-companion-proposal-text proposal)))
      (dotimes (_ 2)
        (qwen-companion-test-refused "has conflicts with the file on disk" (qwen-companion-diff-accept proposal)))
      (should-not (qwen-companion-test-outcomes))
      (with-current-buffer (qwen-companion-proposal-buffer proposal)
        (goto-char (point-min))
        (let ((inhibit-read-only t))
          (smerge-keep-all)
          (qwen-companion-conflicts-update)))
      (qwen-companion-diff-accept proposal)
      (should (equal '((accepted "ONE\n1\nmine\n2\n3\n4\n5\n6\n7\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-text-written-since-cannot-be-merged ()
  "As long as that is so, accepting is refused; rejecting is not."
  (qwen-companion-proposal-test-with-written "ONE\n2\n3\n4\n5\n6\n7\n" "1\n2\n3\n4\n5\n6\nmine\n" nil
    (cl-letf (((symbol-function 'qwen-companion-merge-texts)
               (lambda (&rest arguments) (funcall (car (last arguments)) nil))))
      (dotimes (_ 3)
        (qwen-companion-test-said "cannot be merged with the proposal; reject it"
          (qwen-companion-test-refused "changed on disk after it was proposed" (qwen-companion-diff-accept proposal)))))
    (should-not (qwen-companion-test-outcomes))
    (qwen-companion-diff-reject proposal)
    (should (equal '((rejected nil)) (qwen-companion-test-outcomes)))))

(ert-deftest qwen-companion-proposal-test-line-ends-written-since-are-no-conflict ()
  (qwen-companion-proposal-test-with-written "ONE\n2\n3\n4\n5\n6\n7\n" "1\r\n2\r\n3\r\n4\r\n5\r\n6\r\nmine\r\n" nil
    (qwen-companion-proposal-test--prepare proposal)
    (qwen-companion-diff-accept proposal)
    (should (equal '((accepted "ONE\n2\n3\n4\n5\n6\nmine\n")) (qwen-companion-test-outcomes)))))

(ert-deftest qwen-companion-proposal-test-byte-order-mark-is-kept-and-not-shown ()
  "Some CLIs take it for text, propose it and write the answer as it is."
  (qwen-companion-test-with-proposals '(("a.txt" "\ufeffone\r\ntwo\r\n"))
    (let ((proposal (qwen-companion-test-propose "a.txt" "\ufeffone\r\n2\r\n")))
      (qwen-companion-proposal-test--prepare proposal)
      (should (equal "one\ntwo\n" (qwen-companion-proposal-test--on-disk proposal)))
      (should (equal "one\n2\n" (qwen-companion-test-buffer-text (qwen-companion-proposal-buffer proposal))))
      (qwen-companion-diff-accept)
      (should (equal '((accepted "\ufeffone\r\n2\r\n")) (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-proposal-test-warns-of-text-that-the-cli-cannot-read ()
  "A CLI that knows UTF-8 only would spoil a file in another encoding."
  (qwen-companion-test-with-proposals nil
    (let ((coding-system-for-write 'iso-latin-1-unix))
      (write-region "caf\u00e9\n" nil "a.txt" nil 'silent))
    (dolist (case '(("caf\ufffd!\n" . t) ("caf\u00e9!\n" . nil)))
      (let ((proposal (qwen-companion-test-propose "a.txt" (car case))))
        (qwen-companion-proposal-test--prepare proposal)
        (should (equal "caf\u00e9\n" (qwen-companion-proposal-test--on-disk proposal)))
        (dolist (buffer (list (qwen-companion-proposal-disk-buffer proposal)
                              (qwen-companion-proposal-buffer proposal)))
          (should (eq (cdr case)
                      (and (string-match-p "loses text" (qwen-companion-test-header buffer)) t))))
        (qwen-companion-diff-reject proposal)))))

;;; Reviews that a hook holds

(ert-deftest qwen-companion-proposal-test-a-call-that-is-over-ends-its-review ()
  "Nothing is left of a review that nobody has edited; edits are kept."
  (qwen-companion-test-with-proposals '(("a.txt" . "one\n") ("b.txt" . "one\n"))
    (let* ((plain (qwen-companion-test-propose "a.txt" "two\n" :held t))
           (edited (qwen-companion-test-propose "b.txt" "two\n" :held t)))
      (with-current-buffer (qwen-companion-proposal-buffer edited)
        (goto-char (point-max))
        (insert "mine\n"))
      (should (string-search
               "a.txt: the turn is over"
               (qwen-companion-test-messages
                 (dolist (proposal (list plain edited))
                   (qwen-companion-proposal-on-orphan
                    (list :id (qwen-companion-proposal-id proposal) :reason "the turn is over"))
                   (should-not (qwen-companion-proposal-open-p proposal))))))
      (should-not (buffer-live-p (qwen-companion-proposal-buffer plain)))
      (should (equal "two\nmine\n" (with-current-buffer (qwen-companion-proposal-buffer edited)
                                     (buffer-string)))))))

(ert-deftest qwen-companion-proposal-test-a-rejection-has-a-reason-where-one-is-read ()
  (qwen-companion-test-with-proposals '(("a.txt" . "one\n"))
    (let ((held (qwen-companion-test-propose "a.txt" "two\n" :held t)))
      (qwen-companion-diff-reject held "not here")
      (should (equal "not here" (plist-get (plist-get (car (qwen-companion-test-sent 'outcome))
                                                      :reason)
                                           :text))))
    (let ((other (qwen-companion-test-propose "a.txt" "two\n"))
          (current-prefix-arg '(4)))
      (with-current-buffer (qwen-companion-proposal-buffer other)
        (should-error (call-interactively #'qwen-companion-diff-reject) :type 'user-error))
      (should (qwen-companion-proposal-open-p other)))))

(provide 'qwen-companion-proposal-test)
;;; qwen-companion-proposal-test.el ends here
