;;; qwen-companion-chat-review-test.el --- Tests of reviews in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What becomes of an edit that the user changes before allowing it: in the
;; file, in the buffer that visits it, and when something goes wrong.

;;; Code:

(require 'qwen-companion-changes-test-helper)
(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-review)

(defconst qwen-companion-chat-review-test--old "one\ntwo\nthree\nfour\nfive\n")
(defconst qwen-companion-chat-review-test--new "one\nTWO\nthree\nfour\nfive\n")
(defconst qwen-companion-chat-review-test--wanted "one\nTwo!\nthree\nfour\nfive\n")

(defvar qwen-companion-chat-review-test--file nil
  "The file that is edited.")

(defmacro qwen-companion-chat-review-test-with (&rest body)
  "Run BODY in a chat where an edit of a file waits, and its review is open."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-chat-review--edits nil))
     (cl-letf (((symbol-function 'qwen-companion-merge-texts) #'qwen-companion-test-merge-now)
               ((symbol-function 'qwen-companion-merge-compare) #'qwen-companion-test-compare-now)
               ((symbol-function 'yes-or-no-p)
                (lambda (prompt) (ert-fail (list "Asked" prompt)))))
       (qwen-companion-chat-test-with
         (let ((qwen-companion-chat-review-test--file (expand-file-name "file.txt")))
           (qwen-companion-chat-review-test--write qwen-companion-chat-review-test--old)
           (qwen-companion-chat-review-test--ask)
           (qwen-companion-chat-review-test--show)
           ,@body)))))

(defun qwen-companion-chat-review-test--edits-waiting ()
  "Return the edits of tools that go on."
  qwen-companion-chat-review--edits)

(defun qwen-companion-chat-review-test--write (text)
  "Write TEXT to the file, as an agent does."
  (qwen-companion-test-write qwen-companion-chat-review-test--file text))

(defun qwen-companion-chat-review-test--tool (status)
  "Let the Python process report that the tool has STATUS."
  (qwen-companion-chat-test-turn
   (list :kind 'tool :turn "t1" :id "c1" :status status :name "edit" :title "Edit file.txt"
         :revision 1
         :diffs (list (list :index 0 :path qwen-companion-chat-review-test--file
                            :old-size 24 :new-size 24)))))

(defun qwen-companion-chat-review-test--ask (&rest report)
  "Let the Python process report that the edit waits; REPORT says something else."
  (unless report
    (qwen-companion-chat-review-test--tool 'pending))
  (apply #'qwen-companion-chat-test-tell 'daemon-permission :session "s"
         (append report
                 '(:permission "p1" :state open :turn "t1" :tool "c1" :title "Edit file.txt"
                   :options ((:id "o1" :label "Always" :allows t :lasting t)
                             (:id "o2" :label "Allow" :allows t)
                             (:id "o3" :label "Reject")))))
  (unless report
    (qwen-companion-chat-review-test--fetched)))

(defun qwen-companion-chat-review-test--fetched ()
  "Let the Python process send both sides of the change."
  (pcase-dolist (`(,part . ,text)
                 `((new . ,qwen-companion-chat-review-test--new)
                   (old . ,qwen-companion-chat-review-test--old)))
    (qwen-companion-chat-test-tell 'daemon-text :session "s" :tool "c1" :part part :index 0
                                   :text text)))

(defun qwen-companion-chat-review-test--show ()
  "Show the change as C-c C-v does."
  (with-current-buffer (car (qwen-companion-chat-buffers))
    (call-interactively (key-binding (kbd "C-c C-v")))
    (qwen-companion-chat-review-test--fetched)))

(defun qwen-companion-chat-review-test--proposal ()
  "Return the proposal in review."
  (car (qwen-companion-proposals)))

(defun qwen-companion-chat-review-test--edit (&optional text)
  "Edit the proposal to TEXT, by default the wanted text."
  (qwen-companion-test-editing (qwen-companion-chat-review-test--proposal)
    (erase-buffer)
    (insert (or text qwen-companion-chat-review-test--wanted)))
  (qwen-companion-review-refresh 'unified (qwen-companion-chat-review-test--proposal)))

(defun qwen-companion-chat-review-test--press (key)
  "Press KEY in the review."
  (with-current-buffer (window-buffer)
    (should (derived-mode-p 'qwen-companion-unified-mode))
    (call-interactively (key-binding (kbd key)))))

(defun qwen-companion-chat-review-test--sent ()
  "Return (OPTION . TEXT) of the answer that was sent, nil for none."
  (pcase (qwen-companion-test-sent 'daemon-answer)
    ('nil nil)
    (`(,payload) (cons (plist-get payload :option) (plist-get payload :text)))
    (more (ert-fail (list "Answered more than once" more)))))

(defun qwen-companion-chat-review-test--accept-edited (&optional text)
  "Edit the proposal to TEXT, by default the wanted text, and accept it.
Let the daemon take the answer."
  (qwen-companion-chat-review-test--edit text)
  (qwen-companion-chat-review-test--press "C-c C-c")
  (should (equal (cons "o2" (or text qwen-companion-chat-review-test--wanted)) (qwen-companion-chat-review-test--sent)))
  (should-not (qwen-companion-proposals))
  (qwen-companion-chat-test-reply 'daemon-answer)
  (qwen-companion-chat-review-test--ask :state 'closed :by 'me :label "Allow"))

(defun qwen-companion-chat-review-test--on-disk ()
  "Return the text of the file."
  (qwen-companion-test-file-text qwen-companion-chat-review-test--file))

(defun qwen-companion-chat-review-test--kept ()
  "Return the text that is kept, nil for none."
  (when-let* ((buffer (car (qwen-companion-rescue-buffers))))
    (with-current-buffer buffer (buffer-substring-no-properties (point-min) (point-max)))))

(ert-deftest qwen-companion-chat-review-test-answers ()
  "The review opens from the chat, and its keys answer the question."
  (pcase-dolist (`(,key . ,answer) '(("C-c C-c" "o2") ("C-c C-k" "o3")))
    (qwen-companion-chat-review-test-with
      (should (equal qwen-companion-chat-review-test--new
                     (qwen-companion-proposal-text (qwen-companion-chat-review-test--proposal))))
      ;; It is none of a CLI's, and was asked for by the user.
      (should-not (qwen-companion-proposal-snapshot))
      (qwen-companion-chat-review-test--press key)
      (should (equal answer (qwen-companion-chat-review-test--sent)))
      (should-not (qwen-companion-test-sent 'outcome))
      (should-not (qwen-companion-proposals))
      (qwen-companion-chat-test-reply 'daemon-answer)
      (qwen-companion-chat-review-test--tool 'done)
      (should-not (qwen-companion-chat-review-test--kept)))))

(ert-deftest qwen-companion-chat-review-test-comes-back ()
  "A review that was put aside keeps its edits; the keys of the chat respect them."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (qwen-companion-chat-review-test--press "q")
    (with-current-buffer (car (qwen-companion-chat-buffers))
      (setq last-command-event ?y)
      (qwen-companion-test-refused "edited this in its review"
        (call-interactively (key-binding (kbd "C-c C-a y")))))
    (should-not (qwen-companion-chat-review-test--sent))
    (qwen-companion-chat-review-test--show)
    (should (equal qwen-companion-chat-review-test--wanted
                   (qwen-companion-proposal-text (qwen-companion-chat-review-test--proposal))))
    (qwen-companion-chat-review-test--accept-edited)))

(ert-deftest qwen-companion-chat-review-test-edits-reach-the-file ()
  "After the write, the text of the user is saved as one undo step.
Other text that the tool or somebody else has written stays, and the user
may empty the file, which no CLI could be told."
  (pcase-dolist (`(,visited ,wanted ,written ,result)
                 `((nil ,qwen-companion-chat-review-test--wanted ,qwen-companion-chat-review-test--new ,qwen-companion-chat-review-test--wanted)
                   (t ,qwen-companion-chat-review-test--wanted ,qwen-companion-chat-review-test--new ,qwen-companion-chat-review-test--wanted)
                   (nil "" ,qwen-companion-chat-review-test--new "")
                   (nil ,qwen-companion-chat-review-test--wanted "one\nTWO\nthree\nfour\nFORMATTED\n"
                        "one\nTwo!\nthree\nfour\nFORMATTED\n")))
    (qwen-companion-chat-review-test-with
      (when visited
        (find-file-noselect qwen-companion-chat-review-test--file))
      (qwen-companion-chat-review-test--accept-edited wanted)
      (should (equal qwen-companion-chat-review-test--old (qwen-companion-chat-review-test--on-disk)))
      (qwen-companion-chat-review-test--write written)
      (qwen-companion-chat-review-test--tool 'done)
      (qwen-companion-test-wait-for (equal result (qwen-companion-chat-review-test--on-disk)))
      (with-current-buffer (find-buffer-visiting qwen-companion-chat-review-test--file)
        (should-not (buffer-modified-p))
        (qwen-companion-test-undo)
        (should (equal written (buffer-string))))
      (should-not (qwen-companion-chat-review-test--kept)))))

(ert-deftest qwen-companion-chat-review-test-a-conflict-is-marked ()
  "Where both have changed the same lines, nothing is saved before that is resolved."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--accept-edited)
    (qwen-companion-chat-review-test--write "one\nanother two\nthree\nfour\nfive\n")
    (qwen-companion-chat-review-test--tool 'done)
    (let ((buffer (qwen-companion-test-wait-for
                   (find-buffer-visiting qwen-companion-chat-review-test--file))))
      (with-current-buffer buffer
        (qwen-companion-test-wait-for (qwen-companion-conflicts-p))
        (should (string-search "<<<<<<< as written\nanother two\n||||||| as proposed\nTWO\n=======\nTwo!\n>>>>>>> as reviewed\n"
                               (buffer-string)))
        (qwen-companion-test-refused "your version in the review"
          (save-buffer))))
    (should (equal "one\nanother two\nthree\nfour\nfive\n" (qwen-companion-chat-review-test--on-disk)))))

(ert-deftest qwen-companion-chat-review-test-unsaved-text-stays-unsaved ()
  "The changes are merged into a buffer with unsaved text, which is not saved."
  (qwen-companion-chat-review-test-with
    (let ((qwen-companion-disk-catch-up-functions (list #'always)))
      (qwen-companion-test-append "mine\n" (find-file-noselect qwen-companion-chat-review-test--file))
      (qwen-companion-chat-review-test--accept-edited)
      (qwen-companion-chat-review-test--write qwen-companion-chat-review-test--new)
      (with-current-buffer (find-buffer-visiting qwen-companion-chat-review-test--file)
        ;; As following the file does.
        (qwen-companion-test-go-to "two")
        (replace-match "TWO" t)
        (set-visited-file-modtime))
      (qwen-companion-chat-review-test--tool 'done)
      (with-current-buffer (find-buffer-visiting qwen-companion-chat-review-test--file)
        (qwen-companion-test-wait-for
         (equal (concat qwen-companion-chat-review-test--wanted "mine\n") (buffer-string)))
        (should (buffer-modified-p)))
      (should (equal qwen-companion-chat-review-test--new (qwen-companion-chat-review-test--on-disk))))))

(ert-deftest qwen-companion-chat-review-test-nothing-is-lost ()
  "An accepted text that does not get into its file is kept, once."
  (dolist (trouble
           (list
            (lambda () (qwen-companion-chat-review-test--tool 'failed))
            ;; The daemon has died, or the turn was cancelled.
            (lambda () (qwen-companion-chat-test-session :state 'dead :text "gone"))
            (lambda () (qwen-companion-chat-test-session :state 'idle))
            (lambda ()
              (with-current-buffer (car (qwen-companion-chat-buffers))
                (let ((kill-buffer-query-functions nil))
                  (kill-buffer))))
            ;; The file is read-only now.
            (lambda ()
              (with-current-buffer (find-file-noselect qwen-companion-chat-review-test--file)
                (setq buffer-read-only t))
              (qwen-companion-chat-review-test--tool 'done)
              (qwen-companion-test-wait-for (qwen-companion-chat-review-test--kept)))))
    (qwen-companion-chat-review-test-with
      (qwen-companion-chat-test-session :state 'waiting)
      (qwen-companion-chat-review-test--accept-edited)
      (qwen-companion-chat-test-session :state 'busy)
      (should-not (qwen-companion-chat-review-test--kept))
      (funcall trouble)
      (should (equal qwen-companion-chat-review-test--wanted (qwen-companion-chat-review-test--kept)))
      (should (= 1 (length (qwen-companion-rescue-buffers))))
      (should (equal qwen-companion-chat-review-test--old (qwen-companion-chat-review-test--on-disk)))
      (should-not (qwen-companion-chat-review-test--edits-waiting)))))

(ert-deftest qwen-companion-chat-review-test-somebody-was-faster ()
  "An edit is kept when the answer of another client counts, sent or not."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (qwen-companion-chat-review-test--ask :state 'closed :by 'other :label "Allow")
    (should-not (qwen-companion-proposals))
    (should (equal qwen-companion-chat-review-test--wanted (qwen-companion-chat-review-test--kept))))
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (qwen-companion-chat-review-test--press "C-c C-c")
    (qwen-companion-chat-review-test--ask :state 'closed :by 'other :label "Allow")
    (qwen-companion-chat-test-reply 'daemon-answer :error "It is gone." :problem 'gone)
    (should (equal qwen-companion-chat-review-test--wanted (qwen-companion-chat-review-test--kept)))
    (should (= 1 (length (qwen-companion-rescue-buffers))))
    ;; What the other client has allowed is not changed.
    (qwen-companion-chat-review-test--write qwen-companion-chat-review-test--new)
    (qwen-companion-chat-review-test--tool 'done)
    (should-not (qwen-companion-chat-review-test--edits-waiting))
    (should-not (find-buffer-visiting qwen-companion-chat-review-test--file))))

(ert-deftest qwen-companion-chat-review-test-an-answer-that-fails ()
  "The question stays open; the text is kept, also when nobody takes the call."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (qwen-companion-chat-review-test--press "C-c C-c")
    (qwen-companion-chat-test-reply 'daemon-answer :error "The daemon is busy." :problem 'busy)
    (should (equal qwen-companion-chat-review-test--wanted (qwen-companion-chat-review-test--kept)))
    (with-current-buffer (car (qwen-companion-chat-buffers))
      (should (string-search "Your answer was not accepted: The daemon is busy."
                             (qwen-companion-chat-test-conversation)))))
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (cl-letf (((symbol-function 'qwen-companion-backend-call) #'ignore))
      (qwen-companion-chat-review-test--press "C-c C-c"))
    (should (equal qwen-companion-chat-review-test--wanted (qwen-companion-chat-review-test--kept)))
    (should-not (qwen-companion-chat-review-test--edits-waiting))))

(ert-deftest qwen-companion-chat-review-test-a-lost-connection-decides-nothing ()
  "The review stays open, and is answered after reconnecting."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--edit)
    (qwen-companion-chat-review-test--ask :state 'held)
    (qwen-companion-test-refused "connection to the daemon is lost"
      (qwen-companion-chat-review-test--press "C-c C-c"))
    (should (qwen-companion-proposals))
    (qwen-companion-chat-review-test--ask :state 'open)
    (qwen-companion-chat-review-test--accept-edited)))

(ert-deftest qwen-companion-chat-review-test-only-a-whole-text ()
  "A change of a part of the file is shown, not reviewed."
  (qwen-companion-chat-review-test-with
    (qwen-companion-chat-review-test--press "C-c C-k")
    (should-not (qwen-companion-proposals)))
  (let ((qwen-companion-chat-review-test--old "two\n"))
    (cl-letf (((symbol-function 'qwen-companion-disk-holds-p) #'ignore))
      (qwen-companion-chat-review-test-with
        (should-not (qwen-companion-proposals))))))

(provide 'qwen-companion-chat-review-test)
;;; qwen-companion-chat-review-test.el ends here
