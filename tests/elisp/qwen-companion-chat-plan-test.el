;;; qwen-companion-chat-plan-test.el --- Tests of plans of a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A plan that a chat asks to approve is the buffer that it is for a CLI in a
;; terminal; what the user decides there goes to the daemon.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-permissions)

(defconst qwen-companion-chat-plan-test--text "# Fruit\n\n1. Buy plums.\n2. Bake.\n")

(defmacro qwen-companion-chat-plan-test-with (&rest body)
  "Run BODY in an orderly frame with a chat that asks to approve a plan."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-diff-arrival 'command))
     (cl-letf (((symbol-function 'qwen-companion-merge-compare) #'qwen-companion-test-compare-now))
       (set-frame-size (selected-frame) 200 40)
       (qwen-companion-chat-test-with
         (delete-other-windows)
         (qwen-companion-chat-test-session :state 'waiting)
         (qwen-companion-chat-plan-test--ask)
         ,@body))))

(defun qwen-companion-chat-plan-test--ask (&optional text id state &rest report)
  "Let the plan TEXT wait under the permission ID, in STATE, with REPORT."
  (unless (eq state 'closed)
    (qwen-companion-chat-test-turn
     (list :kind 'tool :turn "t1" :id "c1" :status 'pending :title "Plan:" :revision 1
           :input (concat "plan:\n" (or text qwen-companion-chat-plan-test--text)))))
  (apply #'qwen-companion-chat-test-tell 'daemon-permission
         (append report
                 (list :session "s" :permission (or id "p1") :state (or state 'open) :turn "t1"
                       :tool "c1" :title "Plan:")
                 (unless (eq state 'closed)
                   (list :plan (list :path "/state/plans/1.md"
                                     :text (or text qwen-companion-chat-plan-test--text))
                         :options '((:id "o1" :label "Restore" :allows t :mode before)
                                    (:id "o2" :label "Always" :allows t :lasting t :mode auto-edit)
                                    (:id "o3" :label "Once" :allows t :mode default)
                                    (:id "o4" :label "Keep planning")))))))

(defun qwen-companion-chat-plan-test--chat ()
  "Return the chat."
  (car (qwen-companion-chat-buffers)))

(defun qwen-companion-chat-plan-test--answers ()
  "Return (OPTION TEXT COMMENTS) of each answer sent, the oldest first."
  (mapcar (lambda (payload)
            (list (plist-get payload :option) (plist-get payload :text)
                  (plist-get (plist-get payload :comments) :text)))
          (qwen-companion-test-sent 'daemon-answer)))

(defun qwen-companion-chat-plan-test--edit ()
  "Edit the plan."
  (qwen-companion-test-edit (car (qwen-companion-proposals)) "3. Eat.\n"))

(ert-deftest qwen-companion-chat-plan-test-comes-as-that-of-a-cli ()
  "It waits unseen, and its keys are those of a plan; the chat is named."
  (qwen-companion-chat-plan-test-with
    (should (string-match-p " plan" (qwen-companion-test-lighter)))
    (should (eq (qwen-companion-chat-plan-test--chat) (window-buffer)))
    (should-not (qwen-companion-proposal-seen (car (qwen-companion-proposals))))
    ;; A new Python process hears of it from the daemon.
    (should-not (qwen-companion-proposal-snapshot))
    (qwen-companion-review)
    (should (equal qwen-companion-chat-plan-test--text (buffer-string)))
    (should (string-match-p "C-c C-t answer in the chat" (qwen-companion-test-header)))
    (should (get-buffer-window (qwen-companion-chat-plan-test--chat)))
    (qwen-companion-test-press "C-c C-t")
    (should (eq (qwen-companion-chat-plan-test--chat) (window-buffer)))
    (should-not (qwen-companion-test-sent 'release))
    ;; Of the approved plans, those of this chat.
    (qwen-companion-plan)
    (should (equal '("s") (mapcar (lambda (payload) (plist-get payload :conversation))
                                  (qwen-companion-test-sent 'list-plans))))
    (qwen-companion-test-press "C-c C-v")
    (should (equal qwen-companion-chat-plan-test--text (buffer-string)))))

(ert-deftest qwen-companion-chat-plan-test-approves-in-a-mode ()
  "The mode before, or the one that is chosen; an edited text goes along."
  (pcase-dolist (`(,mode . ,option) '((nil . "o1") ("auto-edit" . "o2") ("default" . "o3")))
    (qwen-companion-chat-plan-test-with
      (qwen-companion-review)
      (if mode
          (qwen-companion-test-choosing mode
            (let ((current-prefix-arg '(4))) (qwen-companion-diff-accept)))
        (qwen-companion-test-press "C-c C-c"))
      (should (equal `((,option nil nil)) (qwen-companion-chat-plan-test--answers)))
      (should-not (qwen-companion-proposals))
      (should-not (qwen-companion-test-sent 'outcome))))
  (qwen-companion-chat-plan-test-with
    (qwen-companion-chat-plan-test--edit)
    (qwen-companion-review)
    (qwen-companion-test-comment "Bake" "At 200 degrees")
    (qwen-companion-test-press "C-c C-c")
    (pcase (qwen-companion-chat-plan-test--answers)
      (`(("o1" ,text ,comments))
       (should (equal (concat qwen-companion-chat-plan-test--text "3. Eat.\n") text))
       (should (string-match-p "plan:4\n> 2. Bake.\nAt 200 degrees" comments)))
      (other (ert-fail (list "Answered" other))))
    (qwen-companion-chat-test-reply 'daemon-answer)
    (should-not (qwen-companion-test-sent 'daemon-prompt))
    (qwen-companion-chat-plan-test--ask nil nil 'closed :by 'me :label "Restore")
    (qwen-companion-chat-test-turn
     (list :kind 'tool :turn "t1" :id "c1" :status 'done :title "Plan:" :revision 1))
    (qwen-companion-chat-test-session :state 'idle)
    (should-not (qwen-companion-rescue-buffers))))

(ert-deftest qwen-companion-chat-plan-test-comments-are-the-next-prompt ()
  "The daemon's answer has no place for them; the next plan is a difference."
  (qwen-companion-chat-plan-test-with
    (qwen-companion-review)
    (qwen-companion-test-comment "plums" "No plums")
    (qwen-companion-test-press "C-c C-k")
    (should (equal '(("o4" nil nil)) (qwen-companion-chat-plan-test--answers)))
    (should-not (qwen-companion-test-sent 'daemon-prompt))
    (qwen-companion-chat-test-reply 'daemon-answer)
    (should (string-match-p "plan:3\n> 1. Buy plums.\nNo plums"
                            (format "%S" (qwen-companion-test-sent 'daemon-prompt))))
    (qwen-companion-chat-plan-test--ask nil nil 'closed :by 'me :label "Keep planning")
    (qwen-companion-chat-plan-test--ask "# Fruit\n\n1. Buy pears.\n2. Bake.\n" "p2")
    (qwen-companion-review)
    (should (derived-mode-p 'qwen-companion-unified-mode))
    (should (string-match-p "Buy plums" (buffer-string)))
    (should (cl-some (lambda (overlay)
                       (string-match-p "No plums" (or (overlay-get overlay 'after-string) "")))
                     (overlays-in (point-min) (point-max))))
    (qwen-companion-test-press "C-c C-t")
    (should (eq (qwen-companion-chat-plan-test--chat) (window-buffer)))))

(ert-deftest qwen-companion-chat-plan-test-the-first-outcome-wins ()
  "The end of a plan elsewhere is said, and no text of the user is lost."
  (pcase-dolist
      (`(,end . ,reason)
       (list (cons (lambda () (qwen-companion-chat-plan-test--ask nil nil 'closed :by 'other :label "Once"))
                   "the plan of .*: another client has answered before you")
             (cons (lambda () (qwen-companion-chat-plan-test--ask nil nil 'closed :by 'nobody))
                   "the plan of .*: the turn has ended before it was answered")
             ;; Its end was missed.
             (cons (lambda () (qwen-companion-chat-test-session :state 'idle))
                   "the plan of .*: the turn has ended before it was answered")
             (cons (lambda () (qwen-companion-chat-test-session :state 'dead :text "gone"))
                   "the plan of .*: the session has ended: gone")
             (cons (lambda ()
                     (with-current-buffer (qwen-companion-chat-plan-test--chat)
                       (let ((kill-buffer-query-functions nil))
                         (kill-buffer))))
                   "the plan of .*: its chat was killed")))
    (qwen-companion-chat-plan-test-with
      (qwen-companion-test-said reason
        (funcall end))
      (should-not (qwen-companion-proposals))
      (should-not (qwen-companion-rescue-buffers)))
    (qwen-companion-chat-plan-test-with
      (qwen-companion-review)
      (qwen-companion-test-comment "plums" "No plums")
      (qwen-companion-chat-plan-test--edit)
      (qwen-companion-test-said "comments on the review not sent; they are in the kill ring"
        (funcall end))
      (should-not (qwen-companion-proposals))
      (should (string-match-p "No plums" (current-kill 0)))
      (should (qwen-companion-test-buffers-with
               (concat qwen-companion-chat-plan-test--text "3. Eat.\n"))))))

(ert-deftest qwen-companion-chat-plan-test-a-late-approval-is-kept ()
  "An edited text that the daemon does not take stays in a buffer."
  (qwen-companion-chat-plan-test-with
    (qwen-companion-chat-plan-test--edit)
    (qwen-companion-diff-accept)
    (qwen-companion-chat-test-reply 'daemon-answer :error "Too late." :problem 'gone)
    (should (qwen-companion-test-buffers-with
             (concat qwen-companion-chat-plan-test--text "3. Eat.\n")))))

(ert-deftest qwen-companion-chat-plan-test-keeps-what-cannot-be-answered-yet ()
  "The plan, its edits and its comments stay while the chat takes no answer."
  (qwen-companion-chat-plan-test-with
    (qwen-companion-review)
    (qwen-companion-test-comment "plums" "No plums")
    (qwen-companion-chat-plan-test--edit)
    (qwen-companion-chat-plan-test--ask nil nil 'held)
    (dolist (key '("C-c C-c" "C-c C-k"))
      (qwen-companion-test-refused "The connection to the daemon is lost"
        (qwen-companion-test-press key)))
    (should-not (qwen-companion-test-sent 'daemon-answer))
    ;; All is told again, as after another Python process has come.
    (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 1)
    (qwen-companion-chat-plan-test--ask)
    (should (= 1 (length (qwen-companion-proposals))))
    (qwen-companion-test-press "C-c C-k")
    (qwen-companion-chat-test-reply 'daemon-answer)
    (should (string-match-p "No plums" (format "%S" (qwen-companion-test-sent 'daemon-prompt))))))

(ert-deftest qwen-companion-chat-plan-test-is-left-to-the-chat ()
  "Where plans are not wanted, or are too long, the question stands in the chat."
  (qwen-companion-chat-plan-test-with
    (qwen-companion-chat-plan-test--ask nil nil 'closed :by 'nobody)
    (let ((qwen-companion-show-questions nil))
      (qwen-companion-chat-plan-test--ask nil "p2"))
    (let ((qwen-companion-diff-size-limit 10))
      (qwen-companion-chat-plan-test--ask nil "p3"))
    (should-not (qwen-companion-proposals))
    (should (string-match-p "1. Buy plums." (qwen-companion-chat-test-conversation)))
    (setq last-command-event ?!)
    (call-interactively (key-binding (kbd "C-c C-a !")))
    (should (equal '(("o2" nil nil)) (qwen-companion-chat-plan-test--answers)))))

(ert-deftest qwen-companion-chat-plan-test-the-chat-answers-too ()
  "Its keys close the plan; an edited one is answered where it was edited."
  (qwen-companion-chat-plan-test-with
    (qwen-companion-chat-plan-test--edit)
    (setq last-command-event ?!)
    (qwen-companion-test-refused "edited this in its review"
      (call-interactively (key-binding (kbd "C-c C-a !"))))
    (should (qwen-companion-proposals))))

(provide 'qwen-companion-chat-plan-test)
;;; qwen-companion-chat-plan-test.el ends here
